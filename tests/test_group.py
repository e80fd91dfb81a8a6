"""One set over many processes is one process: outputs and gradients, whatever the shares."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from omniset import SetBatch
from omniset.encoders.base import linear_layers
from omniset.engine.group import Processes
from omniset.kernels import folded
from omniset.testing import relative_error
from oracle import assert_along
from test_engine import B, D, N, make, sets

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-6}


class Workers:
    """Processes of one group, that run functions of this file. They are forks of a server that has torch already."""

    def __init__(self, size, folder):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["test_group"])
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "tests", *filter(None, sys.path))))
        try:
            forkserver.ensure_running()
        finally:
            os.environ.pop("PYTHONPATH")
            os.environ.update({} if before is None else {"PYTHONPATH": before})
        self.pipes, self.processes = [], []
        for rank in range(size):
            pipe, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, size, f"file://{folder}/store", theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(pipe)
            self.processes.append(process)

    def start(self, function, *arguments, first=None):
        for pipe in self.pipes[:first]:
            pipe.send((function.__name__, arguments))

    def wait(self, rank, seconds=60):
        """Whether the function returned, and what, or its traceback. Raises EOFError if the process is gone."""
        assert self.pipes[rank].poll(seconds), f"process {rank} did not answer in {seconds} s"
        return self.pipes[rank].recv()

    def __call__(self, function, *arguments, first=None):
        """What the function returns in the first of the processes, or in all."""
        self.start(function, *arguments, first=first)
        answers = [self.wait(rank) for rank in range(len(self.pipes[:first]))]
        for rank, (done, value) in enumerate(answers):
            assert done, f"process {rank}:\n{value}"
        return [value for _, value in answers]

    def close(self):
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.close()
            process.join(20)
            assert process.exitcode is not None


GROUPS = {}


def serve(rank, size, address, pipe):
    torch.set_num_threads(1)
    folded.LEAST = 0  # small sets too
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size, timeout=limit)
    for number in range(1, size):
        GROUPS[number] = dist.new_group(list(range(number)), timeout=limit)
    GROUPS[size] = dist.group.WORLD
    while True:
        try:
            name, arguments = pipe.recv()
        except (EOFError, ConnectionError):
            break
        torch.manual_seed(0)
        try:
            pipe.send((True, globals()[name](*arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


@contextmanager
def workers_of(size, folder):
    found = Workers(size, folder)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    with workers_of(4, tmp_path_factory.mktemp("four")) as found:
        yield found


@pytest.fixture
def two(tmp_path):
    with workers_of(2, tmp_path) as found:
        yield found


def outcome(encoder, batch, columns=slice(None), terms=("summary", "elements", "contexts"), streamed=None, **options):
    """Outputs for these columns, and the gradients of a loss: of elements, of multiplicities, of all weights."""
    leaves = [x[:, columns].clone().requires_grad_() for x in (batch.elements, batch.multiplicity)]
    source = SetBatch(*leaves) if streamed is None else batch_of(batch, columns).shards(streamed)
    out = encoder(source, **options)

    def term(x, part=slice(None), shape=None):
        generator = torch.Generator().manual_seed(1)
        weights = torch.randn(x.shape if shape is None else shape, generator=generator).to(x)
        return (x * weights[:, part]).sum()

    contexts = [c for c in out.contexts if isinstance(c, torch.Tensor)]  # not all elements
    loss = leaves[0].sum() * 0
    if "summary" in terms:
        loss = loss + term(out.summary)
    if "contexts" in terms:
        loss = loss + sum(term(context) for context in contexts)
    outputs = [out.summary, *contexts]
    if isinstance(out.elements, torch.Tensor):
        outputs.append(out.elements)
        if "elements" in terms:
            loss = loss + term(out.elements, columns, (B, N, out.elements.shape[2]))
    d_elements, d_multiplicity, *grads = torch.autograd.grad(loss, [*leaves, *encoder.parameters()], allow_unused=True)
    return outputs, [d_elements, leaves[1] * 0 if d_multiplicity is None else d_multiplicity], grads


def batch_of(batch, columns):
    return SetBatch(batch.elements[:, columns], batch.multiplicity[:, columns])


def filled(grads, encoder):
    return [torch.zeros_like(p) if g is None else g for g, p in zip(grads, encoder.parameters(), strict=True)]


def assert_share(got, whole, encoder, columns):
    """This process's results are those of one process: all of the sets', and its columns of what elements have."""
    tolerance = TOLERANCE[whole[0][0].dtype]
    outputs = [x[:, columns] if x.shape[1] == N else x for x in whole[0]]
    for a, b in zip(got[0], outputs, strict=True):
        assert relative_error(a, b) <= tolerance
    assert relative_error(got[1], [x[:, columns] for x in whole[1]]) <= tolerance
    assert relative_error(filled(got[2], encoder), filled(whole[2], encoder)) <= tolerance


def check(cuts, name, more, store, shard_size, terms=("summary", "elements", "contexts"), dtype=torch.float64):
    size = len(cuts) - 1
    columns = slice(cuts[dist.get_rank()], cuts[dist.get_rank() + 1])
    encoder, batch = make(name, dtype, **more), sets(dtype)
    whole = outcome(encoder, batch, terms=terms)
    options = {"store": store, "shard_size": shard_size, "terms": terms, "process_group": GROUPS[size]}
    assert_share(outcome(encoder, batch, columns, **options), whole, encoder, columns)


def check_streamed(cuts, name, more, store):
    size, rank = len(cuts) - 1, dist.get_rank()
    columns = slice(cuts[rank], cuts[rank + 1])
    encoder, batch = make(name, **more), sets()
    whole = outcome(encoder, batch, terms=("summary", "contexts"))
    shared = {"store": store, "process_group": GROUPS[size]}
    got = outcome(encoder, batch, columns, terms=("summary", "contexts"), streamed=7, **shared)
    for a, b in zip(got[0], whole[0], strict=False):
        assert relative_error(a, b) <= 1e-12
    assert relative_error(filled(got[2], encoder), filled(whole[2], encoder)) <= 1e-12
    for without_gradient in (torch.no_grad, torch.inference_mode):
        with without_gradient():
            whole = encoder(batch)
            out = encoder(batch_of(batch, columns).shards(7), **shared)
            one = encoder(batch_of(batch, columns), **shared)
            assert relative_error([out.summary, one.summary], [whole.summary] * 2) <= 1e-12
            if encoder.outputs_elements:
                elements = torch.cat([shard.elements for shard in out.elements], 1)
                assert relative_error([elements, one.elements], [whole.elements[:, columns]] * 2) <= 1e-12


ENCODERS = [
    ("deep-sets", {}),
    ("deep-sets", {"pooling": "sum"}),
    ("deep-sets", {"pooling": "max"}),
    ("ust", {}),
    ("ust", {"class_token": True, "decoder_depth": 1}),
    ("set-transformer-isab", {"norm": "post", "ffn_dim": 0, "decoder_depth": 1}),
    ("sse", {"weighting": "slots", "random": False}),
    ("umbc", {"random": False}),
    ("abmil", {}),
    ("flare", {"hidden_layers": 0}),
]
SHARES = [  # also empty ones, of the process that has the class tokens too
    ((0, 23, N), "device", None),
    ((0, 0, N), "device", 7),
    ((0, 5, 5, N), "recompute", 7),
    ((0, 0, 40, N), "device", None),
]


@pytest.mark.parametrize(("name", "more"), ENCODERS)
@pytest.mark.parametrize(("cuts", "store", "shard_size"), SHARES)
def test_processes_are_one(four, name, more, cuts, store, shard_size):
    four(check, cuts, name, more, store, shard_size, first=len(cuts) - 1)


@pytest.mark.parametrize("store", ["disk", "cpu", "device"])
def test_other_stores_and_float32(four, store):
    dtype = torch.float32 if store == "device" else torch.float64
    four(check, (0, 23, N), "ust", {"class_token": True}, store, 7, ("summary", "elements"), dtype, first=2)


@pytest.mark.parametrize("terms", [("summary",), ("elements",), ("contexts",), ()])
@pytest.mark.parametrize("class_token", [True, False])
def test_losses_of_some_outputs(four, terms, class_token):
    four(check, (0, 5, 40, N), "ust", {"class_token": class_token}, "device", 30, terms, first=3)


@pytest.mark.parametrize(("name", "more"), [ENCODERS[0], ENCODERS[3], ENCODERS[4]])
@pytest.mark.parametrize("store", ["device", "recompute"])
def test_a_source_that_is_read_anew_and_no_gradient(four, name, more, store):
    four(check_streamed, (0, 0, 40, N), name, more, store, first=3)


def check_lacking():
    """A loss that some processes have no term of; weights that get no gradient; an encoder that wants none."""
    rank, cuts = dist.get_rank(), (0, 23, N)
    columns = slice(cuts[rank], cuts[rank + 1])
    encoder, batch = make("ust"), sets()
    x = batch.elements.clone().requires_grad_()
    out = encoder(SetBatch(x, batch.multiplicity))
    parameters = list(encoder.parameters())
    whole = torch.autograd.grad(out.elements[:, :23].sin().sum(), [x, *parameters], allow_unused=True)
    own = batch.elements[:, columns].clone().requires_grad_()
    out = encoder(SetBatch(own, batch.multiplicity[:, columns]), process_group=GROUPS[2])
    loss = out.elements.sin().sum() if rank == 0 else out.summary.sum() * 0
    got = torch.autograd.grad(loss, [own, *parameters], allow_unused=True)
    assert relative_error(got[0], whole[0][:, columns]) <= 1e-12
    assert relative_error(filled(got[1:], encoder), filled(whole[1:], encoder)) <= 1e-12
    # Of no process: None, so that optimizers leave these weights alone.
    loss = encoder(SetBatch(own, batch.multiplicity[:, columns]), process_group=GROUPS[2]).elements.sin().sum()
    grads = torch.autograd.grad(loss, parameters, allow_unused=True)
    absent = [n for (n, _), g in zip(encoder.named_parameters(), grads, strict=True) if g is None]
    assert absent == [n for n, _ in encoder.named_parameters() if n.startswith("pool")]
    assert encoder(batch[:0], process_group=GROUPS[2]).summary.shape == (0, 3, 10)
    # Frozen weights.
    encoder.requires_grad_(False)
    (expected,) = torch.autograd.grad(encoder(SetBatch(x, batch.multiplicity)).summary.sin().sum(), x)
    out = encoder(SetBatch(own, batch.multiplicity[:, columns]), process_group=GROUPS[2])
    (got,) = torch.autograd.grad(out.summary.sin().sum(), own)
    assert relative_error(got, expected[:, columns]) <= 1e-12


def test_what_processes_lack(four):
    four(check_lacking, first=2)


def check_dropout(class_token):
    rank, size = dist.get_rank(), 3
    group = GROUPS[size]
    options = {"class_token": class_token, "decoder_depth": 1, "dropout": 0.3}
    encoder, batch = make("ust", **options).train(), sets()
    parameters = list(encoder.parameters())
    share = batch_of(batch, slice(*((0, 5), (5, 40), (40, N))[rank]))

    def outputs():
        torch.manual_seed(7 * rank)  # not the same: the processes have to agree on a seed
        return encoder(share, shard_size=20, process_group=group)

    def total():
        out = outputs()
        own = out.elements.detach().square().sum()
        dist.all_reduce(own, group=group)
        return out.summary.square().sum() + own

    out = outputs()
    summaries = [torch.empty_like(out.summary) for _ in range(size)]
    dist.all_gather(summaries, out.summary.detach(), group=group)
    assert all(torch.equal(s, summaries[0]) for s in summaries)
    grads = torch.autograd.grad(out.summary.square().sum() + out.elements.square().sum(), parameters, allow_unused=True)
    if class_token:  # the decoder, outside the engine, has it whole already
        assert all(g is not None for g in grads)
    assert_along(parameters, grads, total)
    # Equal shares: what all processes share is the same, masks of elements are not.
    same = encoder(batch, process_group=group)
    others = [torch.empty_like(same.elements) for _ in range(size)]
    dist.all_gather(others, same.elements.detach().contiguous(), group=group)
    assert not torch.equal(others[0], others[1])
    assert not torch.equal(others[1], others[2])


def check_random_slots():
    rank, size = dist.get_rank(), 2
    encoder, batch = make("umbc", random=True).train(), sets()
    parameters, pool = list(encoder.parameters()), encoder.pool
    drawn, draw = [], pool.draw
    pool.draw = lambda: drawn.append(draw()) or drawn[-1]
    torch.manual_seed(7 * rank)  # not the same: the processes have to agree on the slots
    share = batch_of(batch, slice(*((0, 23), (23, N))[rank]))
    out = encoder(share, shard_size=20, process_group=GROUPS[size])
    got = torch.autograd.grad(out.summary.sin().sum(), parameters)
    slots = [torch.empty_like(drawn[0]) for _ in range(size)]
    dist.all_gather(slots, drawn[0], group=GROUPS[size])
    assert torch.equal(slots[0], slots[1])
    pool.draw = lambda: drawn[0]
    whole = encoder(batch).summary
    assert relative_error(out.summary, whole) <= 1e-12
    expected = torch.autograd.grad(whole.sin().sum(), parameters)
    assert relative_error(filled(got, encoder), filled(expected, encoder)) <= 1e-12


def test_random_slots_are_drawn_together(four):
    four(check_random_slots, first=2)


@pytest.mark.parametrize("class_token", [True, False])
def test_dropout_is_drawn_together_and_replayed(four, class_token):
    four(check_dropout, class_token, first=3)


class Net(nn.Module):
    """A loss of sets and a target, as users write it."""

    def __init__(self):
        super().__init__()
        self.encoder = make("ust", class_token=True, decoder_depth=1)
        self.head = linear_layers(10, 1, 1).double()

    def forward(self, share, target, **options):
        out = self.encoder(share, **options)
        predicted = self.head(out.summary)[..., 0]
        return (predicted - target).square().mean() + out.elements.sin().sum() / (B * N)


def batches(number):
    torch.manual_seed(1)
    return [(sets(), torch.randn(B, 3, dtype=torch.float64)) for _ in range(number)]


def check_data_times_set():
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "set"))
    row, column = mesh.get_coordinate()
    net, data = Net(), batches(2)
    parameters = list(net.parameters())
    loss = sum(net(batch, target) for batch, target in data) / 2
    expected = torch.autograd.grad(loss, parameters)
    parallel = nn.parallel.DistributedDataParallel(net)
    for _ in range(2):  # the second time in the order that DDP has found
        net.zero_grad()
        batch, target = data[row]
        share = batch_of(batch, (slice(0, 11), slice(11, N))[column])
        parallel(share, target, shard_size=20, process_group=mesh.get_group("set")).backward()
        assert relative_error([p.grad for p in parameters], expected) <= 1e-12


def test_data_times_set_with_ddp(four):
    four(check_data_times_set)


def test_the_script_of_the_docs_under_torchrun(tmp_path, capsys):
    page = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    script = next(block for block in blocks if "init_process_group" in block)
    path = tmp_path / "train.py"
    path.write_text(script, encoding="utf-8")
    exec(compile(script, "how-it-works.md", "exec"), {"__name__": "page"})
    alone = float(re.search(r"^loss (\S+)$", capsys.readouterr().out, flags=re.MULTILINE)[1])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    shared = re.findall(r"^loss (\S+)$", done.stdout, flags=re.MULTILINE)
    assert [float(loss) for loss in shared] == pytest.approx([alone], abs=2e-5)


def train_until(rank, calls, action):
    """Forward and backward; the process of this rank meets its fate when it embeds its shards the n-th time."""
    encoder, batch = make("ust"), sets()
    seen = []

    def count(*_):
        seen.append(1)
        if dist.get_rank() == rank and len(seen) == calls:
            os.kill(os.getpid(), signal.SIGKILL) if action == "kill" else time.sleep(3)

    encoder.embed.register_forward_hook(count)
    group = dist.new_group([0, 1], timeout=timedelta(seconds=60 if action == "kill" else 1))
    start = time.monotonic()
    try:
        encoder(batch, shard_size=40, store="recompute", process_group=group).summary.sum().backward()
    except RuntimeError as error:
        return str(error), time.monotonic() - start, len(seen)
    return None


@pytest.mark.parametrize("calls", [2, 9])
def test_a_process_that_is_killed(two, calls):
    """In the forward (6 readings of shards), and in the backward."""
    two.start(train_until, 1, calls, "kill")
    _, (message, _, seen) = two.wait(0, 30)
    assert message.startswith("a process of the group has ended or does not answer: ")
    assert (seen > 6) == (calls > 6)
    with pytest.raises((EOFError, ConnectionError)):
        two.wait(1, 10)


def test_a_process_that_is_stuck(two):
    two.start(train_until, 0, 2, "sleep")
    _, (message, seconds, _) = two.wait(1, 30)
    assert message.startswith("a process of the group has ended or does not answer: ")
    assert seconds < 5
    assert two.wait(0, 30)[0]


def refused(function):
    try:
        function()
    except ValueError as error:
        return str(error)
    return "nothing was refused"


def check_refusals():
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor import DeviceMesh, distribute_tensor

    rank = dist.get_rank()
    mesh = DeviceMesh("cpu", [0, 1, 2, 3])
    other = dist.new_group([1, 2, 3])
    if rank == 0:
        assert "must be a torch.distributed.ProcessGroup that has this process, got -100" in refused(
            lambda: Processes(other, torch.device("cpu"))
        )
    only = dist.new_group(backend="cpu:gloo")
    assert Processes(only, torch.device("meta"))._device == torch.device("cpu")  # through host memory, as from MPS
    group, batch = {"process_group": dist.group.WORLD}, sets()
    encoder = make("ust")
    assert "process_group= takes shards='merged' only, got 'independent'" in refused(
        lambda: encoder(batch, shards="independent", **group)
    )
    for gradient in ("first-shard", "first-shard-literal"):
        assert f"process_group= takes gradient='exact' only, got {gradient!r}" in refused(
            lambda gradient=gradient: encoder(batch, gradient=gradient, **group)
        )
    of_all = refused(lambda: make("set-transformer-sab")(batch, **group))
    assert of_all.startswith("process_group= merges small states, and full self-attention (SetTransformer) keeps all")
    encoder.mini_batch_consistent = False
    assert "needs a mini-batch consistent encoder" in refused(lambda: encoder(batch, **group))
    sharded = "its weights are sharded (FSDP or DTensor)"
    inside, tensor = make("ust"), make("ust")
    inside.layers[0] = FullyShardedDataParallel(inside.layers[0], device_id=torch.device("cpu"))
    assert sharded in refused(lambda: inside(batch, **group))
    outside = FullyShardedDataParallel(Net(), device_id=torch.device("cpu"))
    assert sharded in refused(lambda: outside(batch, 0, **group))
    assert sharded in refused(lambda: fully_shard(make("ust"), mesh=mesh)(batch, **group))
    assert sharded in refused(lambda: fully_shard(Net(), mesh=mesh)(batch, 0, **group))
    tensor.pool.points = nn.Parameter(distribute_tensor(tensor.pool.points.data, mesh))
    assert sharded in refused(lambda: tensor(batch, **group))


@pytest.mark.filterwarnings("ignore")
def test_refusals(four):
    four(check_refusals)


def check_disagreement():
    """A ValueError on every process; the group can go on."""
    rank = dist.get_rank()
    encoder, batch = make("ust", dropout=0.3), sets()
    group = {"process_group": dist.group.WORLD}

    def agree_on(what, numbers):
        return f"the processes of process_group must agree on {what}, got {numbers} on processes 0 to 3"

    said = refused(lambda: encoder(batch[:2] if rank == 2 else batch, **group))
    assert said == agree_on("the number of sets", "3, 3, 2, 3")
    said = refused(lambda: encoder([batch[:1]] if rank == 1 else batch.shards(7), **group))
    assert said == agree_on("the number of sets", "3, 1, 3, 3")
    with torch.set_grad_enabled(rank != 0):
        said = refused(lambda: encoder(batch, **group))
    assert said == agree_on("whether gradients are wanted", "0, 1, 1, 1")
    encoder.train(rank != 3)
    assert refused(lambda: encoder(batch, **group)) == agree_on("whether to drop out", "1, 1, 1, 0")
    encoder.eval().pool.requires_grad_(rank != 0)
    assert "must agree on the number of trainable weights" in refused(lambda: encoder(batch, **group))
    encoder.requires_grad_(True)
    said = refused(lambda: encoder([] if rank == 1 else batch, **group))
    expected = "the source gave no shard" if rank == 1 else "process 1 of process_group could not read its source"
    assert said.startswith(expected)
    wide = SetBatch(torch.zeros(B, 1, D + 1).double()) if rank == 3 else batch
    said = refused(lambda: encoder([wide], **group))
    assert said.startswith("elements must have 2 features" if rank == 3 else "process 3 of process_group could not")
    assert encoder(batch, **group).summary.isfinite().all()


def test_processes_that_disagree(four):
    four(check_disagreement)
