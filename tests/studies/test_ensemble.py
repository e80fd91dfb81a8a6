"""Stacked networks are the networks alone."""

from dataclasses import replace

import pytest
import torch
from paper.registry import STUDIES, load
from paper.running import StudyModule, stack
from paper.study import Sample

from omniset.testing import relative_error
from omniset.training.ensemble import Ensemble, keep_best

pytestmark = pytest.mark.slow

SEEDS = [0, 3, 4]
STEPS = 10


def data(study, training, seed, step):
    """What the study would draw, small, in float64."""
    draw = torch.Generator().manual_seed(100 * seed + step)
    elements = torch.randn(4, 7, study.input_dim, generator=draw, dtype=torch.float64)
    multiplicity = torch.randint(0, 3, (4, 7), generator=draw).double()
    multiplicity[:, 0] = 1
    targets = {
        "anomaly": torch.randint(0, 2, (4,), generator=draw).double(),
        "max-regression": torch.randn(4, generator=draw, dtype=torch.float64),
        "mixture-of-gaussians": torch.randn(4, 6, 2, generator=draw, dtype=torch.float64),
        "taxonomy": torch.randint(0, 10, (4, 7), generator=draw),
    }
    digits = torch.randint(0, 10, (4,), generator=draw)
    return Sample(elements, multiplicity, targets.get(study.name, digits))


def trained(study, training, seeds):
    module = StudyModule(study, training, seeds, {}).double()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    losses = []
    for step in range(STEPS):
        found = module.losses(stack([data(study, training, seed, step) for seed in seeds]))
        optimizer.zero_grad()
        found.sum().backward()
        optimizer.step()
        losses.append(found.detach())
    return torch.stack(losses), module.network


def cases():
    for name in STUDIES:
        if name in ("anomaly-faces", "ablation", "max-parts", "max-settings"):  # the trainings of others
            continue
        study = load(name)
        seen = set()
        for training in study.recipe.trainings:
            kind = training.encoder, training.shard_size is None, training.shards, training.gradient
            if training.stacks("cuda") and kind not in seen and "variable" not in training.name:
                seen.add(kind)
                yield pytest.param(name, training.name, id=f"{name}-{training.name}")


@pytest.mark.parametrize(("name", "which"), [*cases()])
def test_ten_steps_together_are_ten_steps_alone(name, which):
    study = load(name)
    study.outputs = getattr(study, "outputs", 10)  # taxonomy counts its references
    (training,) = (t for t in study.recipe.trainings if t.name == which)
    small = {"dim": 8, "num_heads": 2, "depth": 1}
    size = None if training.shard_size is None else min(training.shard_size, 3)
    training = replace(training, arguments=training.arguments | small, shard_size=size)
    losses, together = trained(study, training, SEEDS)
    assert losses[0].std() > 1e-3  # each is another
    for place, seed in enumerate(SEEDS):
        alone_losses, alone = trained(study, training, [seed])
        assert relative_error(losses[:, place], alone_losses[:, 0]) < 1e-9
        ours, theirs = together.states(), alone.states()
        assert ours.keys() == theirs.keys()
        for key in ours:
            difference = (ours[key][place] - theirs[key][0]).abs().max()
            assert difference < 1e-9 * max(1.0, float(theirs[key].abs().max()))


def test_an_ensemble_of_none():
    with pytest.raises(ValueError, match="networks is empty"):
        Ensemble([])


def test_the_best_of_each_is_kept():
    old, new = {"w": torch.zeros(3, 2, 2)}, {"w": torch.ones(3, 2, 2)}
    kept = keep_best(old, new, torch.tensor([True, False, True]))
    assert kept["w"][:, 0, 0].tolist() == [1, 0, 1]


def test_exact_gradients_of_shards_are_not_stacked():
    for name in STUDIES:
        exact = [t for t in load(name).recipe.trainings if t.name.endswith("exact")]
        assert not any(t.stacks(device) for t in exact for device in ("cpu", "cuda"))
