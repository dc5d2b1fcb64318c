"""Compiled block by block, a model gives the same and still overlaps."""

import copy
import statistics

import pytest
import torch
import torch._dynamo
from torch import nn

import comm_plan
from comm_plan.errors import MismatchError, RunError
from comm_plan.plans import LocalSteps, TopK
from comm_plan.tests.runtime.trainings import FEATURES, net, plan_for
from comm_plan.transports.local import LocalTransport

# Of regions within a model: Dynamo looks at .grad of what it hides the warning of.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that")

EAGER = {"backend": "aot_eager"}
"""Regions and their backward as with any backend, without a compiler's run."""


@pytest.fixture(autouse=True)
def afresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


WIDTH, BATCH = 512, 128
IN_ROUNDS = {"local_steps": LocalSteps(every=2)}
CORRECTED = {"momentum_correction": True}


def blocks(number=3, width=FEATURES):
    """Return blocks of two linear layers each."""
    torch.manual_seed(0)

    def block():
        wider = nn.Linear(width, 2 * width)
        return nn.Sequential(wider, nn.Tanh(), nn.Linear(2 * width, width))

    return nn.Sequential(*(block() for _ in range(number)))


def trained(model, plan, steps=3):
    """Return the parameters after some steps by ``plan``, and the last moments."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    with comm_plan.parallelize(model, plan, transport=LocalTransport()) as engine:
        for _ in range(steps):
            x = torch.randn(4, FEATURES, generator=generator)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return list(model.parameters()), engine.last_moments


@pytest.mark.parametrize(
    ("per_bucket", "compiled"),
    [
        (12, [""]),
        (8, ["0", "1", "2"]),  # blocks 2 and 1 travel together, then 0
        (4, ["0", "1", "2"]),
        (2, ["0.0", "0.2", "1.0", "1.2", "2.0", "2.2"]),
    ],
)
def test_the_largest_modules_within_a_bucket_are_compiled(per_bucket, compiled):
    model, backend = blocks(), Counting()
    plan = plan_for(model, 1, per_bucket=per_bucket)
    assert comm_plan.compile_blocks(model, plan, backend=backend) == compiled
    model(torch.ones(2, FEATURES))
    assert backend.runs == len(compiled)


class Counting:
    """A compiler whose regions count how often they run."""

    def __init__(self):
        self.runs = 0

    def __call__(self, graph, inputs):
        def run(*inputs):
            self.runs += 1
            return graph.forward(*inputs)

        return run


class Own(nn.Module):
    """A layer that is no class of torch.nn."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, FEATURES)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize(
    "block",
    [
        Own,
        lambda: nn.Linear(FEATURES, FEATURES),
        lambda: nn.TransformerEncoderLayer(FEATURES, 1, FEATURES, dropout=0.0),
    ],
    ids=["own", "linear", "transformer"],
)
def test_every_block_is_compiled_whoever_wrote_it(block):
    """However many there are: equal ones share what was compiled."""
    torch.manual_seed(0)
    model, backend = nn.Sequential(*(block() for _ in range(12))), Counting()
    plain, x = copy.deepcopy(model), torch.randn(2, 3, FEATURES)
    plan = plan_for(model, 1, per_bucket=len(list(model[0].parameters())))
    assert len(comm_plan.compile_blocks(model, plan, backend=backend)) == 12
    torch.testing.assert_close(model(x), plain(x))
    assert backend.runs == 12
    torch.testing.assert_close(copy.deepcopy(model)(x), plain(x))


def test_a_layer_in_two_buckets_is_compiled_alone():
    model = net()
    names = comm_plan.compile_blocks(model, plan_for(model, 1, per_bucket=1), **EAGER)
    assert names == ["0", "2"]


class Collected(nn.Module):
    """Layers in a list and in a dictionary, which nobody calls."""

    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterList([torch.ones(FEATURES)])
        self.listed = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(2))
        self.named = nn.ModuleDict(
            {name: nn.Linear(FEATURES, FEATURES) for name in "ab"}
        )

    def forward(self, x):
        for layer in (*self.listed, *self.named.values()):
            x = layer(x)
        return x * self.scales[0]


@pytest.mark.parametrize(
    ("per_bucket", "compiled"),
    [(9, [""]), (4, ["listed.0", "listed.1", "named.a", "named.b"])],
)
def test_what_is_never_called_is_compiled_entry_by_entry(per_bucket, compiled):
    """Even where a list, or a dictionary, has a bucket of its own."""
    model = Collected()
    plan = plan_for(model, 1, per_bucket=per_bucket)
    assert comm_plan.compile_blocks(model, plan, **EAGER) == compiled


def test_it_gives_what_the_model_gives():
    model = blocks()
    plain = copy.deepcopy(model)
    plan = plan_for(model, 1, per_bucket=4)
    comm_plan.compile_blocks(model, plan, **EAGER)
    assert list(model.state_dict()) == list(plain.state_dict())
    ours, _ = trained(model, plan)
    theirs, _ = trained(plain, plan)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_a_plan_for_another_model_is_refused():
    with pytest.raises(MismatchError):
        comm_plan.compile_blocks(blocks(2), plan_for(blocks(3), 1))


def first_ready(model, plan):
    """Return the share of backward after which the first bucket is ready."""
    x = torch.randn(BATCH, WIDTH)
    shares = []
    with comm_plan.parallelize(model, plan, transport=LocalTransport()) as engine:
        for _ in range(8):
            model(x).square().mean().backward()
            backward, end, ready, *_ = engine.last_moments.seconds()
            shares.append((ready - backward) / (end - backward))
    return statistics.median(shares[2:])  # the first ones compile


def test_a_bucket_is_ready_when_its_block_is():
    """Of three equal blocks the first is ready after about a third of backward."""
    model = blocks(width=WIDTH)
    plan = plan_for(model, 1, per_bucket=4)
    comm_plan.compile_blocks(model, plan, **EAGER)
    assert first_ready(model, plan) < 0.7


def test_compiled_as_a_whole_all_buckets_are_ready_at_the_end():
    model = blocks(width=WIDTH)
    model.compile(**EAGER)
    assert first_ready(model, plan_for(model, 1, per_bucket=4)) > 0.7


@pytest.mark.filterwarnings("ignore")  # of a compiler that meets hooks
@torch._dynamo.config.patch(compiled_autograd=True)
def test_a_compiled_backward_is_refused_by_name():
    model = net()
    plan = plan_for(model, 1)

    @torch.compile(**EAGER)
    def step(x):
        model(x).square().mean().backward()

    with (
        comm_plan.parallelize(model, plan, transport=LocalTransport()),
        pytest.raises(RunError, match="backward is compiled"),
    ):
        step(torch.randn(4, FEATURES))


@pytest.mark.filterwarnings("ignore")  # of the compiler itself
@pytest.mark.parametrize(
    "changes", [{}, IN_ROUNDS, CORRECTED], ids=["plain", "in rounds", "corrected"]
)
def test_a_compiled_step_is_that_of_the_loop_and_looks_into_no_hook(changes):
    """Threads share what its guards would hold on to."""
    from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics

    reached = []
    for compiled in (False, True):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        plan = plan_for(model, 1, TopK(density=0.1), "gtopk").model_copy(update=changes)
        with (
            comm_plan.parallelize(
                model,
                plan,
                transport=LocalTransport(),
                optimizer=optimizer if changes else None,
            ) as engine,
            comm_plan.record(engine),
        ):
            clear_compilation_metrics()
            run = torch.compile(step, backend="eager") if compiled else step
            for seed in range(4):
                run(
                    torch.randn(
                        4, FEATURES, generator=torch.Generator().manual_seed(seed)
                    )
                )
        reached.append(list(model.parameters()))
    torch.testing.assert_close(*reached)
    files = {str(metrics.co_filename) for metrics in get_compilation_metrics()}
    assert files
    assert not [name for name in files if "/runtime/" in name and "tests" not in name]


def test_what_a_framework_sets_on_a_compiled_model_is_heeded():
    model = torch.compile(net(), backend="eager")
    plan = plan_for(model, 1)
    with comm_plan.parallelize(model, plan, transport=LocalTransport()) as engine:
        for synced in (False, True):
            model.require_backward_grad_sync = synced
            model(torch.ones(2, FEATURES)).sum().backward()
            assert engine.step == int(synced)
