"""Runs as one rank: trains each scenario under DDP and under the engine, compares.

    python -m comm_plan.tests.support.forked comm_plan.tests.runtime.ddp_oracle RANKS

Started by test_engine.py on several ranks, and by test_cuda.py on those of a GPU.
Prints, on rank 0, a JSON object: scenario -> "same", "close" or a description of the
difference.
"""

import copy
import json
import os
import shutil
import tempfile
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpointing
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import comm_plan
from comm_plan import parallelize
from comm_plan.errors import RunError
from comm_plan.plans import Bucket, Plan, PlannedModel, TopK
from comm_plan.plans.compression.rows import Rows
from comm_plan.plans.parameters import model_fingerprint, trainable
from comm_plan.tests.support import forked
from comm_plan.transports.distributed import TorchTransport, _timeout_of

STEPS = 4
BATCH = 6
TIMEOUT = timedelta(minutes=7)
DEVICE = torch.device(os.environ.get(forked.DEVICE, "cpu"))
BACKEND = os.environ.get(forked.BACKEND, "gloo")


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(),
                         nn.Linear(16, 4))  # fmt: skip


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Branches(nn.Module):
    """Uses its left or right branch by the input; `never` is used by nobody."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(8, 8)
        self.left = nn.Linear(8, 4)
        self.right = nn.Linear(8, 4)
        self.never = nn.Linear(8, 4)

    def forward(self, x):
        branch = self.left if x[0, 0] > 0 else self.right
        return branch(self.trunk(x))


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(8, 8)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        x = self.first(x)
        x = checkpoint(self.inner, x, use_reentrant=self.reentrant)
        return self.last(x)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 4).double()

    def forward(self, x):
        return self.second(self.first(x).double())


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3)

    def forward(self, x):
        x = x.view(-1, 2, 8, 8).contiguous(memory_format=torch.channels_last)
        return self.second(torch.relu(self.norm(self.first(x)))).mean((2, 3))


class Words(nn.Module):
    """Looks up the rows of a table, of which a step uses some."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 4, sparse=True)
        self.scores = nn.Linear(4, 3)

    def forward(self, x):
        tokens = (x * 20).long().abs() % 50
        return self.scores(self.words(tokens))


class Complex(nn.Module):
    """So small that it does not diverge: that would multiply roundings."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.phases = nn.Parameter(0.3 * torch.randn(8, 4, dtype=torch.complex64))
        self.scale = nn.Parameter(torch.tensor(0.5 + 0.5j))

    def forward(self, x):
        return (self.first(x).to(torch.complex64) @ self.phases * self.scale).abs()


def dictionary_output():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = mlp()

        def forward(self, x):
            return {"out": [self.body(x)]}

    return Model()


def plan_for(model, world_size, tensors_each=2):
    names = list(trainable(model))[::-1]
    dtypes = {n: p.dtype for n, p in trainable(model).items()}
    sparse = {f"{name}.weight" for name, module in model.named_modules()
              if getattr(module, "sparse", False)}  # fmt: skip
    dtypes.update(dict.fromkeys(sparse, "rows"))
    buckets, run = [], []
    for name in names:
        if run and (len(run) == tensors_each or dtypes[run[-1]] != dtypes[name]):
            buckets.append(Bucket(tensors=tuple(run)))
            run = []
        run.append(name)
    buckets.append(Bucket(tensors=tuple(run)))
    buckets = [
        Bucket(tensors=bucket.tensors, compressor=Rows(), collective="allgather")
        if sparse.issuperset(bucket.tensors)
        else bucket
        for bucket in buckets
    ]
    model_id = PlannedModel(name="test", fingerprint=model_fingerprint(model))
    return Plan(solver="hand", model=model_id, world_size=world_size, backend="gloo",
                buckets=tuple(buckets))  # fmt: skip


def data(rank, step, width=8):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(BATCH, width, generator=generator).to(DEVICE)


def over_all_ranks():
    return TorchTransport(device=DEVICE)


def value(output):
    if isinstance(output, dict):
        output = output["out"][0]
    return output.square().mean()


def train(model, sync_off, optimizer, steps, step_function):
    for step in steps:
        step_function(model, sync_off, optimizer, step)


def plain(model, sync_off, optimizer, step, width=8, set_to_none=True):
    optimizer.zero_grad(set_to_none=set_to_none)
    value(model(data(dist.get_rank(), step, width))).backward()
    optimizer.step()


def keep_zeroed(model, sync_off, optimizer, step):
    plain(model, sync_off, optimizer, step, set_to_none=False)


def wide(model, sync_off, optimizer, step):
    plain(model, sync_off, optimizer, step, width=128)


def accumulate(model, sync_off, optimizer, step):
    optimizer.zero_grad()
    rank = dist.get_rank()
    for part in range(2):
        with sync_off():
            value(model(data(rank, 10 * step + part))).backward()
    value(model(data(rank, 10 * step + 2))).backward()
    optimizer.step()


def two_backwards(model, sync_off, optimizer, step):
    optimizer.zero_grad()
    for part in range(2):
        value(model(data(dist.get_rank(), 10 * step + part))).backward()
    optimizer.step()


def evaluate_between(model, sync_off, optimizer, step):
    model.eval()
    with torch.no_grad():
        model(data(99, step))
    model.train()
    plain(model, sync_off, optimizer, step)


def unused_on_one_rank(model, sync_off, optimizer, step):
    optimizer.zero_grad()
    x = data(dist.get_rank(), step)
    x[0, 0] = 1 if dist.get_rank() % 2 else -1
    value(model(x)).backward()
    optimizer.step()


class Heads(nn.Module):
    """Two layers, each of which a loss may leave out."""

    def __init__(self):
        super().__init__()
        self.left = nn.Linear(8, 4)
        self.right = nn.Linear(8, 4)

    def forward(self, x, use=("left", "right")):
        return {"out": [sum(getattr(self, name)(x) for name in use)],
                "each": [getattr(self, name)(x) for name in use]}  # fmt: skip


def unused_after_no_sync(by):
    """`right` has an unsynchronised gradient, and later one on the ranks `by` only."""

    def step_function(model, sync_off, optimizer, step):
        optimizer.zero_grad()
        rank = dist.get_rank()
        with sync_off():
            value(model(data(rank, 10 * step))).backward()
        use = ("left", "right") if rank in by else ("left",)
        value(model(data(rank, 10 * step + 1), use)).backward()
        optimizer.step()

    return step_function


def a_backward_each(model, sync_off, optimizer, step):
    optimizer.zero_grad()
    for output in model(data(dist.get_rank(), step))["each"]:
        output.square().mean().backward()
    optimizer.step()


def accumulated_then_a_backward_each(model, sync_off, optimizer, step):
    optimizer.zero_grad()
    rank = dist.get_rank()
    with sync_off():
        value(model(data(rank, 10 * step))).backward()
    for output in model(data(rank, 10 * step + 1))["each"]:
        output.square().mean().backward()
    optimizer.step()


def in_eval_mode(model, sync_off, optimizer, step):
    model.eval()
    wide(model, sync_off, optimizer, step)


def other_head_each_time(model, sync_off, optimizer, step):
    optimizer.zero_grad()
    for part, use in enumerate((("right",), ("left",))):
        value(model(data(dist.get_rank(), 10 * step + part), use)).backward()
    optimizer.step()


def other_heads_on_other_ranks(model, sync_off, optimizer, step):
    optimizer.zero_grad()
    rank = dist.get_rank()
    value(model(data(rank, 10 * step), ("left",))).backward()
    use = ("left",) if rank == 0 else ("right",)
    value(model(data(rank, 10 * step + 1), use)).backward()
    optimizer.step()


def forward_before_update(model, sync_off, optimizer, step):
    optimizer.zero_grad()
    x = data(dist.get_rank(), step)
    value(model(x)).backward()
    model(x)
    optimizer.step()


def gradient_penalty(model, sync_off, optimizer, step):
    x = data(dist.get_rank(), step).requires_grad_()
    output = model(x)
    (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    optimizer.zero_grad()
    (output.mean() + (slope.norm(dim=1) - 1).square().mean()).backward()
    optimizer.step()


def adversarial(model, sync_off, optimizer, step):
    x = data(dist.get_rank(), step).requires_grad_()
    (slope,) = torch.autograd.grad(value(model(x)), x)
    optimizer.zero_grad()
    value(model((x + 0.1 * slope.sign()).detach())).backward()
    optimizer.step()


def frozen_for_another(model, sync_off, optimizer, step):
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    value(model(data(dist.get_rank(), step).requires_grad_())).backward()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    plain(model, sync_off, optimizer, step)


def two_forwards(model, sync_off, optimizer, step):
    optimizer.zero_grad()
    first, second = (
        model(data(dist.get_rank(), 10 * step + part, 128)) for part in range(2)
    )
    (first - second).square().mean().backward()
    optimizer.step()


def sparse_adam(model, sync_off, optimizer, step):
    """The state of a row moves only when it is there."""
    words = getattr(model, "module", model).words
    if not hasattr(words, "adam"):
        words.adam = torch.optim.SparseAdam(words.parameters(), lr=0.01)
    model.zero_grad()
    value(model(data(dist.get_rank(), step))).backward()
    words.adam.step()


SCENARIOS = {
    "plain": (mlp, plain, {}),
    "set_to_none=False": (mlp, keep_zeroed, {}),
    "no_sync accumulation": (mlp, accumulate, {}),
    "two backwards": (mlp, two_backwards, {}),
    "evaluation between": (mlp, evaluate_between, {}),
    "tied weights": (Tied, plain, {}),
    "unused parameters": (Branches, unused_on_one_rank, {"unused": True}),
    "checkpoint": (lambda: Checkpointed(False), plain, {}),
    "re-entrant checkpoint": (lambda: Checkpointed(True), plain, {}),
    "mixed dtypes": (Mixed, plain, {}),
    "batch norm, channels last": (
        lambda: Convolutions().to(memory_format=torch.channels_last),
        wide,
        {},
    ),
    "dictionary output": (dictionary_output, plain, {}),
    "unused after no_sync": (Heads, unused_after_no_sync(()), {"unused": True}),
    "unused after no_sync but on rank 1": (
        Heads, unused_after_no_sync((1,)), {"unused": True}
    ),
    "two heads, a backward each": (Heads, a_backward_each, {}),
    "accumulated, then a backward each": (
        Heads, accumulated_then_a_backward_each, {}
    ),
    "another head each time": (Heads, other_head_each_time, {"unused": True}),
    "other heads on other ranks": (
        Heads, other_heads_on_other_ranks, {"unused": True}
    ),
    "forward before the update": (mlp, forward_before_update, {}),
    "forward before the update, unused": (
        mlp, forward_before_update, {"unused": True}
    ),
    "gradient penalty": (mlp, gradient_penalty, {}),
    "adversarial examples": (mlp, adversarial, {}),
    "frozen for another model": (mlp, frozen_for_another, {}),
    "in eval mode": (Convolutions, in_eval_mode, {}),
    "two forwards, batch norm": (Convolutions, two_forwards, {}),
    "sparse gradients": (Words, plain, {}),
    "sparse gradients from no_sync": (Words, accumulate, {}),
    "sparse gradients under SparseAdam": (Words, sparse_adam, {}),
    "complex parameters": (Complex, plain, {}),
    "complex parameters from no_sync": (Complex, accumulate, {}),
}  # fmt: skip


def outcome(make, step_function, unused=False):
    torch.manual_seed(dist.get_rank())  # ranks start apart: rank 0's must win
    mine = make().to(DEVICE)
    torch.manual_seed(0)
    theirs = DistributedDataParallel(copy.deepcopy(mine), find_unused_parameters=unused)
    ours = mine
    plan = plan_for(ours, dist.get_world_size())
    engine = parallelize(
        ours, plan, transport=over_all_ranks(), find_unused_parameters=unused
    )
    their_optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    our_optimizer = torch.optim.SGD(ours.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        step_function(theirs, theirs.no_sync, their_optimizer, step)
        step_function(ours, engine.no_sync, our_optimizer, step)
    if list(ours.buffers()):  # as an evaluation finds them
        with torch.no_grad():
            theirs.eval()(data(99, 0, 128))
    engine.close()
    return compare(theirs.module, ours)


def compare(theirs, ours):
    worst = "same"
    pairs = list(zip(theirs.named_parameters(), ours.parameters(), strict=True))
    pairs += list(zip(theirs.named_buffers(), ours.buffers(), strict=True))
    for (name, a), b in pairs:
        if not torch.equal(a, b):
            if not torch.allclose(a, b, rtol=1e-5, atol=1e-6):
                return f"{name} differs by {(a - b).abs().max()}"
            worst = "close"
        there, here = getattr(a, "grad", None), getattr(b, "grad", None)
        if (there is None) != (here is None):
            return f"{name}: .grad None there: {there is None}, here: {here is None}"
    return worst


def no_parameter_used_on_one_rank():
    """Rank 0's loss reaches no parameter; its optimizer step must still take part."""
    torch.manual_seed(0)
    model = mlp().to(DEVICE)
    reference = copy.deepcopy(model)
    rank, size = dist.get_rank(), dist.get_world_size()
    engine = parallelize(
        model, plan_for(model, size), transport=over_all_ranks(),
        find_unused_parameters=True,
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    output = model(data(rank, 0))
    if rank > 0:
        value(output).backward()
    optimizer.step()
    engine.close()
    for other in range(1, size):
        (value(reference(data(other, 0))) / size).backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    return compare(reference, model)


def uneven_batches():
    """Every rank has one batch more than the one before; rank 0's end first."""
    torch.manual_seed(0)
    ours = Convolutions().to(DEVICE)
    theirs = DistributedDataParallel(copy.deepcopy(ours))
    engine = parallelize(ours, plan_for(ours, dist.get_world_size()))
    for model, joinable in ((theirs, theirs), (ours, engine)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Join([joinable]):
            for step in range(2 + dist.get_rank()):
                plain(model, None, optimizer, step, width=128)
    engine.close()
    ours.zero_grad()
    theirs.zero_grad()
    return compare(theirs.module, ours)


def the_switch_of_ddp():
    """Frameworks set it on the model instead of entering no_sync."""
    torch.manual_seed(0)
    ours = mlp().to(DEVICE)
    theirs = DistributedDataParallel(copy.deepcopy(ours))
    engine = parallelize(ours, plan_for(ours, dist.get_world_size()))
    for model in (theirs, ours):
        for part in range(3):
            model.require_backward_grad_sync = part == 2
            value(model(data(dist.get_rank(), part))).backward()
    steps = engine.step
    engine.close()
    return compare(theirs.module, ours) if steps == 1 else f"{steps} steps"


def saved_by_torch():
    """torch.distributed.checkpoint merges equal keys: residuals must not be lost."""
    box = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box)
    model = mlp().to(DEVICE)
    plan = plan_for(model, dist.get_world_size())
    buckets = tuple(
        bucket.model_copy(
            update={"compressor": TopK(density=0.1), "collective": "allgather"}
        )
        for bucket in plan.buckets
    )
    engine = parallelize(model, plan.model_copy(update={"buckets": buckets}))
    value(model(data(dist.get_rank(), 0))).backward()
    own = copy.deepcopy(engine.remembered())
    checkpointing.save({"engine": engine.state_dict()}, checkpoint_id=box[0])
    value(model(data(dist.get_rank(), 1))).backward()
    state = {"engine": engine.state_dict()}
    checkpointing.load(state, checkpoint_id=box[0])
    engine.load_state_dict(state["engine"])
    back = engine.remembered()
    engine.close()
    if dist.get_rank() == 0:
        shutil.rmtree(box[0])
    same = all(torch.equal(own[n]["residual"], back[n]["residual"]) for n in own)
    return "same" if same else "other residuals"


def ddp_by_a_plan():
    """DDP's buckets, once it has seen the order, are those of the plan."""
    torch.manual_seed(0)
    model = mlp().to(DEVICE)
    plan = plan_for(model, dist.get_world_size(), tensors_each=4)
    nbytes = {name: p.nbytes for name, p in model.named_parameters()}
    wrapped = DistributedDataParallel(model, **comm_plan.ddp_options(model, plan))
    for part in range(3):
        value(wrapped(data(0, part))).backward()
    sizes = wrapped._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    expected = [sum(nbytes[n] for n in bucket.tensors) for bucket in plan.buckets]
    found = [int(size) for size in sizes.split(",")]
    return "same" if sorted(found) == sorted(expected) else f"{found}, not {expected}"


def wrapped_in_ddp_too():
    """Both would average: the first forward says so."""
    model = mlp().to(DEVICE)
    engine = parallelize(model, plan_for(model, dist.get_world_size()))
    try:
        DistributedDataParallel(model)(data(0, 0))
    except RunError as error:
        return "same" if "DistributedDataParallel" in str(error) else str(error)
    finally:
        engine.close()
    return "nothing was said"


def a_group_of_its_own():
    """The last rank alone, and all others: nothing passes between them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group(range(size - 1)), dist.new_group([size - 1])]
    members = [*range(size - 1)] if rank < size - 1 else [rank]
    torch.manual_seed(members[0])
    model = mlp().to(DEVICE)
    reference = copy.deepcopy(model)
    plan = plan_for(model, len(members))
    group = groups[rank == size - 1]
    engine = parallelize(model, plan, process_group=group)
    value(model(data(rank, 0))).backward()
    engine.close()
    for member in members:
        (value(reference(data(member, 0))) / len(members)).backward()
    for parameter, expected in zip(
        model.parameters(), reference.parameters(), strict=True
    ):
        if not torch.allclose(parameter.grad, expected.grad, rtol=1e-5, atol=1e-7):
            return "the gradients are not the group's"
    return "same"


def the_time_out_of_the_group():
    """A user who allows minutes, for an evaluation on one rank, means it."""
    duplicate = over_all_ranks().duplicate()
    (timeout,) = {_timeout_of(group, duplicate.device)
                  for group in (None, duplicate._group)}  # fmt: skip
    duplicate.close()
    return "same" if timeout == TIMEOUT else f"{timeout} instead of {TIMEOUT}"


CASES = {
    **{name: lambda case=case: outcome(case[0], case[1], **case[2])
       for name, case in SCENARIOS.items()},
    "no parameter used on one rank": no_parameter_used_on_one_rank,
    "saved by torch": saved_by_torch,
    "DDP by a plan": ddp_by_a_plan,
    "uneven batches": uneven_batches,
    "the switch of DDP": the_switch_of_ddp,
    "wrapped in DDP too": wrapped_in_ddp_too,
    "a group of its own": a_group_of_its_own,
    "the time-out of the group": the_time_out_of_the_group,
}  # fmt: skip


def main():
    torch.set_num_threads(1)
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    dist.init_process_group(BACKEND, timeout=TIMEOUT)
    results = {}
    for name, case in CASES.items():
        try:
            mine = case()
        except Exception:
            mine = traceback.format_exc()
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
        bad = [f"rank {r}: {o}" for r, o in enumerate(everyone)
               if o not in ("same", "close")]  # fmt: skip
        results[name] = bad[0] if bad else ("close" if "close" in everyone else "same")
    if dist.get_rank() == 0:
        print(json.dumps(results), flush=True)
    dist.barrier()  # nobody leaves while gloo still serves another
    dist.destroy_process_group()
