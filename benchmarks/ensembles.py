"""What ten networks trained at once cost against one: a step (forward, backward, Adam) of the small studies."""

import time
from typing import Any

import torch
from paper.registry import load
from paper.running import StudyModule, stack

from benchmarks.results import record

SEEDS = 10
STEPS, WARM = 15, 3
CASES = {"max-regression": ("st-sab", "isab", "umbc"), "mixture-of-gaussians": ("ust-msa-whole", "umbc-msa-whole")}


def main() -> None:
    torch.set_num_threads(2)
    rows = []
    for name, trainings in CASES.items():
        study = load(name)
        if name == "mixture-of-gaussians":  # sets as large as its own, but drawn at once
            study.batch = lambda *_: _like_a_mixture()  # type: ignore[method-assign]
        for training in (t for t in study.recipe.trainings if t.name in trainings):
            steps = {seeds: _step(study, training, range(seeds)) for seeds in (1, SEEDS)}
            seconds: dict[int, list[float]] = {seeds: [] for seeds in steps}
            for turn in range(WARM + STEPS):
                for seeds, step in steps.items():
                    start = time.perf_counter()
                    step(turn)
                    seconds[seeds].append(time.perf_counter() - start)
            median = {seeds: sorted(found[WARM:])[STEPS // 2] for seeds, found in seconds.items()}
            row = {
                "study": name,
                "training": training.name,
                "ms_of_one": 1e3 * median[1],
                "ms_of_ten": 1e3 * median[SEEDS],
                "ratio": median[SEEDS] / median[1],
            }
            print(row, flush=True)
            rows.append(row)
    record("benchmarks/ensembles", {"seeds": SEEDS, "rows": rows}, seed=0)


def _step(study: Any, training: Any, seeds: range) -> Any:
    module = StudyModule(study, training, list(seeds), {})
    optimizer = module.optimizer()

    def step(number: int) -> None:
        batch = stack([study.batch(training, seed, number) for seed in seeds])
        optimizer.zero_grad()
        module.losses(batch).sum().backward()
        optimizer.step()

    return step


def _like_a_mixture() -> Any:
    from paper.study import Sample

    return Sample(torch.randn(10, 45, 2), torch.randint(1, 40, (10, 45)).float(), torch.randn(10, 1024, 2))
