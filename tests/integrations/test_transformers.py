"""Whose residuals the Trainer of Transformers goes on from."""

import copy

import pytest
import torch

from comm_plan.errors import InputError
from comm_plan.plans import LocalSteps, TopK
from comm_plan.runtime.engine import Engine
from comm_plan.tests.integrations.programs import BATCH, Samples, WithLoss
from comm_plan.tests.runtime.trainings import plan_for

NAME = "net.0.weight"

# Those of other people's libraries.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture
def loaded(monkeypatch):
    """Return a list to which is added what an engine remembers after loading."""
    loads = []
    load = Engine.load_state_dict

    def noting(engine, state):
        load(engine, state)
        loads.append(copy.deepcopy(engine.remembered())[NAME]["residual"])

    monkeypatch.setattr(Engine, "load_state_dict", noting)
    return loads


def prepared(folder, *, rate, steps=2, **changes):
    """Return a trainer with checkpoints in ``folder``, and its engines."""
    from transformers import Trainer, TrainingArguments

    from comm_plan.integrations.transformers import use_plan

    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        per_device_train_batch_size=BATCH,
        learning_rate=rate,
        max_steps=steps,
        save_steps=2,
        report_to="none",
        disable_tqdm=True,
        optim="sgd",
        **changes,
    )
    model = WithLoss()
    trainer = Trainer(model, arguments, train_dataset=Samples(4 * BATCH))
    plan = plan_for(model, 1, TopK(density=0.2), "allgather")
    return trainer, use_plan(trainer, plan)


def test_a_plan_with_local_steps_is_refused():
    from accelerate import Accelerator

    from comm_plan.integrations.accelerate import use_plan

    plan = plan_for(WithLoss(), 1)
    local = plan.model_copy(update={"local_steps": LocalSteps(every=4)})
    with pytest.raises(InputError, match="local steps: Accelerate evaluates"):
        use_plan(Accelerator(cpu=True), local)


def train(folder, *, resume=None, **options):
    """Train with checkpoints in ``folder``; return the residual at the end."""
    trainer, engines = prepared(folder, **options)
    trainer.train(resume_from_checkpoint=resume)
    (engine,) = engines.values()
    left = engine.remembered()[NAME]["residual"].clone()
    engine.close()
    return left


@pytest.mark.parametrize("used_by_another", [False, True])
def test_residuals_come_from_the_checkpoint_that_is_named(
    tmp_path, loaded, used_by_another
):
    left = train(tmp_path / "first", rate=0.1)
    if used_by_another:
        assert not torch.equal(train(tmp_path / "second", rate=0.5), left)
    named = str(tmp_path / "first" / "checkpoint-2")
    train(tmp_path / "second", rate=0.1, steps=3, resume=named)
    assert len(loaded) == 1
    assert torch.equal(loaded[0], left)


def test_without_a_name_they_come_from_the_newest_of_its_own(tmp_path, loaded):
    left = train(tmp_path, rate=0.1)
    train(tmp_path, rate=0.1, steps=3, resume=True)
    assert len(loaded) == 1
    assert torch.equal(loaded[0], left)


def test_a_trial_of_a_search_is_not_trained_without_the_plan(tmp_path):
    """A trainer makes another Accelerator for each."""
    trainer, _ = prepared(tmp_path, rate=0.1)
    trainer.create_accelerator_and_postprocess()
    with pytest.raises(InputError, match="another Accelerator"):
        trainer.train()


def test_a_second_plan_is_refused(tmp_path):
    from comm_plan.integrations.transformers import use_plan

    trainer, _ = prepared(tmp_path, rate=0.1)
    with pytest.raises(InputError, match="has a plan already"):
        use_plan(trainer, plan_for(WithLoss(), 1))


def test_a_compiled_model_is_trained_by_the_plan_each_time(tmp_path):
    compiled = {"torch_compile": True, "torch_compile_backend": "eager"}
    trainer, engines = prepared(tmp_path, rate=0.1, **compiled)
    for _ in range(2):
        trainer.train()
        (engine,) = engines.values()
        assert engine.step == 2
    engine.close()


def test_a_model_that_nobody_prepared_is_not_trained_in_silence(tmp_path, monkeypatch):
    trainer, _ = prepared(tmp_path, rate=0.1)
    monkeypatch.setattr(
        trainer.accelerator, "prepare_model", lambda model, *others, **named: model
    )
    with pytest.raises(InputError, match="nothing averages its gradients"):
        trainer.train()
