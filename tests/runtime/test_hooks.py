"""Where internals of autograd may be used, and what hooks leave behind."""

import copy
import gc
import pickle
import re
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import comm_plan
from comm_plan import parallelize
from comm_plan.errors import RunError
from comm_plan.tests.runtime.trainings import FEATURES, net, plan_for
from comm_plan.transports.local import LocalTransport

ROOT = Path(comm_plan.__file__).parent
# PyTorch documents its operations on lists of tensors, _foreach_add_ and others.
PRIVATE = re.compile(r"\btorch\._(?!_|foreach_)|_execution_engine|_current_graph_task")
ROOMS = [
    folder
    for folder in sorted(ROOT.iterdir())
    if (folder / "__init__.py").exists() and folder.name != "tests"
]


def uses_of_private_names():
    files = [
        *ROOT.glob("*.py"),
        *(path for room in ROOMS for path in room.rglob("*.py")),
    ]
    return {
        str(path.relative_to(ROOT))
        for path in files
        if PRIVATE.search(path.read_text(encoding="utf-8"))
    }


def test_only_the_hooks_use_internals_of_autograd():
    assert uses_of_private_names() == {"runtime/hooks.py"}


def test_a_closed_engine_keeps_no_dropped_model_alive():
    """The hook on optimizers is global: it must not hold what it calls."""
    model = net()
    engine = parallelize(model, plan_for(model, 1), transport=LocalTransport())
    engine.close()
    left = weakref.ref(engine), weakref.ref(model)
    del engine, model
    gc.collect()
    assert [thing() for thing in left] == [None, None]


def test_a_closed_engine_is_gone_at_once():
    """Its residuals are as large as the model: they must not wait for the collector."""
    model = net()
    engine = parallelize(model, plan_for(model, 1), transport=LocalTransport())
    model(torch.ones(2, FEATURES)).sum().backward()
    engine.close()
    left = weakref.ref(engine)
    gc.collect()
    gc.disable()
    try:
        del engine
        assert left() is None
    finally:
        gc.enable()


def test_a_model_in_ddp_is_known_by_any_parameter_though_the_first_is_frozen(
    monkeypatch,
):
    model = net()
    next(model.parameters()).requires_grad_(False)
    # No more of the wrapper than its parameters is asked for.
    monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", model)
    with (
        parallelize(model, plan_for(model, 1), transport=LocalTransport()),
        pytest.raises(RunError, match="wrapped in DistributedDataParallel"),
    ):
        model(torch.ones(2, FEATURES))


def test_an_optimizer_of_another_model_ends_no_step():
    model, other = net(), net()
    engine = parallelize(
        model,
        plan_for(model, 1),
        transport=LocalTransport(),
        find_unused_parameters=True,
    )
    model(torch.ones(2, FEATURES))  # pending: no backward yet
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    assert engine.step == 0
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert engine.step == 1
    engine.close()


def test_the_end_of_a_with_block_closes_the_engine():
    threads = threading.active_count()
    model = net()
    with parallelize(model, plan_for(model, 1), transport=LocalTransport()) as engine:
        model(torch.ones(2, FEATURES)).sum().backward()
    model(torch.ones(2, FEATURES)).sum().backward()
    assert engine.step == 1
    assert threading.active_count() <= threads


def test_an_engine_that_nobody_closes_takes_its_process_groups_along(one_rank_group):
    """Each has threads of its own, which only the operating system counts."""

    def threads():
        return len(list(Path("/proc/self/task").iterdir()))

    def drop():
        model = net()
        parallelize(model, plan_for(model, 1))

    drop()
    gc.collect()
    before = threads()
    for _ in range(5):
        drop()
        gc.collect()
    deadline_s = time.monotonic() + 60
    while threads() > before and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert threads() <= before


def test_an_engine_that_nobody_closes_goes_with_its_model():
    threads = threading.active_count()
    left = []
    for _ in range(5):
        model = net()
        engine = parallelize(model, plan_for(model, 1), transport=LocalTransport())
        model(torch.ones(2, FEATURES)).sum().backward()
        left += [weakref.ref(engine), weakref.ref(model)]
        del engine, model
    gc.collect()
    assert [thing() for thing in left] == [None] * len(left)
    deadline_s = time.monotonic() + 60
    while threading.active_count() > threads and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert threading.active_count() <= threads


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda model: pickle.loads(pickle.dumps(model)),
        lambda model: torch.optim.swa_utils.AveragedModel(model).module,
    ],
    ids=["deepcopy", "pickle", "average"],
)
def test_a_copy_is_an_ordinary_model(copied):
    model = net()
    engine = parallelize(model, plan_for(model, 1), transport=LocalTransport())
    model(torch.ones(2, FEATURES)).sum().backward()
    twin = copied(model)
    twin.zero_grad()
    twin(torch.ones(2, FEATURES)).sum().backward()
    assert engine.step == 1
    for mine, its in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine.grad, its.grad)
    engine.close()


def test_an_optimizer_inside_backward_is_refused_by_name():
    model = net()
    engine = parallelize(model, plan_for(model, 1), transport=LocalTransport())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    last = list(model.parameters())[-1]
    last.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    with pytest.raises(RunError, match="inside backward"):
        model(torch.ones(2, FEATURES)).sum().backward()
    engine.close()


def test_a_parameter_is_not_swapped_with_one_that_has_no_hook():
    model = net()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with parallelize(model, plan_for(model, 1), transport=LocalTransport()):
            with pytest.raises(RuntimeError, match="Couldn't swap"):
                model.double()
            model(torch.ones(2, FEATURES)).sum().backward()
        model.zero_grad()
        model.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}


def test_a_hook_that_takes_gradients_away_is_refused_by_name():
    """As of those who update by hand in backward, to save memory."""

    def update(parameter):
        parameter.data.add_(parameter.grad, alpha=-0.1)
        parameter.grad = None

    model = net()
    last = list(model.parameters())[-1]
    last.register_post_accumulate_grad_hook(update)
    with (
        parallelize(model, plan_for(model, 1), transport=LocalTransport()),
        pytest.raises(RunError, match=r"gradient of parameter .*bias is gone before"),
    ):
        model(torch.ones(2, FEATURES)).sum().backward()


def test_an_output_that_lives_on_has_one_hook_which_keeps_nothing_alive():
    class Cached(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x), cached

    cached = torch.ones(1, requires_grad=True) * 2
    model = Cached(FEATURES, 1)
    plan = plan_for(model, 1)
    engine = parallelize(model, plan, transport=LocalTransport())
    for _ in range(5):
        model(torch.ones(2, FEATURES))[0].sum().backward()
    assert len(cached._backward_hooks) == 1
    engine.close()
    model_is_there = weakref.ref(model)
    del model, engine
    gc.collect()
    assert model_is_there() is None
