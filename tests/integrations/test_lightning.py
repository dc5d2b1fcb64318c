"""What a strategy of Lightning hands to its engine, on one rank."""

import pytest
import torch

from comm_plan.errors import InputError
from comm_plan.plans import LocalSteps, TopK
from comm_plan.tests.integrations.programs import FEATURES, net
from comm_plan.tests.runtime.trainings import plan_for

SCALE = 2.0
INPUT = torch.randn(4, FEATURES, generator=torch.Generator().manual_seed(1))

# Those of other people's libraries.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture
def strategy():
    """Return a strategy as a trainer has it before it begins to fit or to test."""
    import lightning
    from lightning.pytorch.accelerators import CPUAccelerator
    from lightning.pytorch.plugins.environments import LightningEnvironment
    from lightning.pytorch.plugins.precision import MixedPrecision

    from comm_plan.integrations.lightning import PlanStrategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x):
            return self.net(x)

    module = Module()
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    made = PlanStrategy(
        plan_for(module, 1, TopK(density=0.2), "allgather"),
        accelerator=CPUAccelerator(),
        cluster_environment=LightningEnvironment(),
        precision_plugin=MixedPrecision("16-mixed", "cpu", scaler),
    )
    made.connect(module)
    yield made
    made.teardown()


def step(strategy):
    """Do a forward and a backward; return the residual that is left."""
    loss = strategy.model(INPUT).square().sum()
    strategy.precision_plugin.scaler.scale(loss).backward()
    left = residual(strategy).clone()
    assert left.any()
    return left


def residual(strategy):
    return strategy.engine.remembered()["net.0.weight"]["residual"]


@pytest.fixture
def checkpoint(strategy, tmp_path):
    """Return the path of a checkpoint with a residual, and the residual."""
    strategy.configure_ddp()
    left = step(strategy)
    path = tmp_path / "last.ckpt"
    strategy.save_checkpoint({}, path)
    strategy.teardown()
    return path, left


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"local_steps": LocalSteps(every=4)}, "local steps: Lightning evaluates"),
        ({"momentum_correction": True}, "Lightning makes the optimizer later"),
    ],
)
def test_plans_that_need_the_optimizer_are_refused(strategy, changes, refused):
    strategy._plan = strategy._plan.model_copy(update=changes)
    with pytest.raises(InputError, match=refused):
        strategy.configure_ddp()


def test_fitting_goes_on_from_the_residuals_of_its_checkpoint(strategy, checkpoint):
    path, left = checkpoint
    strategy.load_checkpoint(path)
    strategy.configure_ddp()
    assert residual(strategy).equal(left)


def test_what_is_loaded_in_the_middle_of_fitting_is_what_it_goes_on_from(
    strategy, tmp_path
):
    """So does Lightning once it has looked for a learning rate."""
    strategy.configure_ddp()
    path = tmp_path / "before.ckpt"
    strategy.save_checkpoint({}, path)
    step(strategy)
    strategy.load_checkpoint(path)
    assert not residual(strategy).any()
    assert strategy.engine.step == 0


def test_a_checkpoint_after_fitting_holds_the_residuals(strategy, tmp_path):
    strategy.configure_ddp()
    left = step(strategy)
    strategy.teardown()
    strategy.save_checkpoint({}, tmp_path / "after.ckpt")
    strategy.load_checkpoint(tmp_path / "after.ckpt")
    strategy.save_checkpoint({}, tmp_path / "of what was loaded.ckpt")
    strategy.configure_ddp()
    assert residual(strategy).equal(left)
    strategy.teardown()
    loaded = strategy.load_checkpoint(tmp_path / "of what was loaded.ckpt")
    assert "comm_plan" not in loaded


def test_fitting_does_not_begin_with_the_residuals_of_a_tested_checkpoint(
    strategy, checkpoint
):
    path, _ = checkpoint
    strategy.load_checkpoint(path)  # trainer.test: no engine is made
    strategy.teardown()
    strategy.configure_ddp()
    assert not residual(strategy).any()


def test_residuals_follow_the_scale_of_the_loss(strategy):
    strategy.configure_ddp()
    left = step(strategy)
    strategy.precision_plugin.scaler.update(8 * SCALE)
    strategy.model(INPUT)
    torch.testing.assert_close(residual(strategy), 8 * left)


def test_a_hook_for_ddp_is_not_ignored_in_silence():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    from comm_plan.integrations.lightning import PlanStrategy

    hook = default_hooks.fp16_compress_hook
    with pytest.raises(InputError, match="ddp_comm_hook is for DDP, whose place"):
        PlanStrategy("plan.json", ddp_comm_hook=hook)
