"""Where internals of autograd may be used, and what hooks leave behind."""

import gc
import re
import weakref
from pathlib import Path

import torch

import comm_plan
from comm_plan import parallelize
from comm_plan.tests.runtime.trainings import FEATURES, net, plan_for
from comm_plan.transports.local import LocalTransport

ROOT = Path(comm_plan.__file__).parent
PRIVATE = re.compile(r"\btorch\._(?!_)|_execution_engine|_current_graph_task")
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
