"""Short trainings in a framework, by DDP or by a plan, each by two ranks.

    python programs.py FRAMEWORK STEPS HOW FOLDER [HOW FOLDER ...]

HOW is ``ddp`` or the path of a plan. Accumulates over two batches and has a batch norm.
A checkpoint that is in FOLDER is taken up, and one is written at the end. Every rank
writes its parameters, and what its engine remembers and has loaded, to
``training-T-rank-R.pt``. The ranks are forks of this process, which imports the
framework once for all: that takes far longer than the trainings.
"""

import copy
import os
import sys
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing import start_processes
from torch.utils.data import DataLoader, Dataset

from comm_plan.runtime.engine import Engine
from comm_plan.transports.launch import rank_variables, reserved_port

RANKS = 2
FEATURES, CLASSES = 6, 3
BATCH, ACCUMULATED = 4, 2
LEARNING_RATE = 0.05


def net():
    """Return the model that all of them train."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, 16),
        nn.BatchNorm1d(16),
        nn.Tanh(),
        nn.Linear(16, CLASSES),
    )


class Samples(Dataset):
    """Random points; in order, so that each framework shards them its own way."""

    def __init__(self, number):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(number, FEATURES, generator=generator)
        self.y = torch.randint(CLASSES, (number,), generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "labels": self.y[index]}


class WithLoss(nn.Module):
    """Computes its loss, as models of Transformers do."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x, labels):
        """Return the loss and the logits."""
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def samples(steps):
    """Return as many as two ranks need."""
    return Samples(RANKS * BATCH * ACCUMULATED * steps)


def with_accelerate(how, steps, folder):
    """Train with Accelerate."""
    from accelerate import Accelerator

    from comm_plan.integrations.accelerate import use_plan

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
    engines = {} if how == "ddp" else use_plan(accelerator, how)
    model = WithLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    batches = DataLoader(samples(steps), BATCH)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    if (folder / "state").exists():
        accelerator.load_state(str(folder / "state"))
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch)["loss"])
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.save_state(str(folder / "state"))
    return accelerator.unwrap_model(model), _remembered(engines)


def with_transformers(how, steps, folder):
    """Train with the Trainer of Transformers."""
    from transformers import Trainer, TrainingArguments

    from comm_plan.integrations.transformers import use_plan

    checkpoints = sorted(folder.glob("checkpoint-*"))
    done = int(checkpoints[-1].name.split("-")[1]) if checkpoints else 0
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATED,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_steps=done + steps,
        save_steps=done + steps,
        report_to="none",
        disable_tqdm=True,
        optim="sgd",
    )
    model = WithLoss()
    trainer = Trainer(model, arguments, train_dataset=samples(steps))
    engines = {} if how == "ddp" else use_plan(trainer, how)
    trainer.train(resume_from_checkpoint=str(checkpoints[-1]) if checkpoints else None)
    return model, _remembered(engines)


def with_lightning(how, steps, folder):
    """Train with Lightning."""
    import lightning

    from comm_plan.integrations.lightning import PlanStrategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self.net(batch["x"]), batch["labels"])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE)

    saved = folder / "last.ckpt"
    remembered = []

    class AtTheEnd(lightning.Callback):  # when the engine is still there
        def on_train_end(self, trainer, module):
            trainer.save_checkpoint(saved)
            if how != "ddp":
                remembered.append(trainer.strategy.engine.remembered())

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp" if how == "ddp" else PlanStrategy(how),
        accumulate_grad_batches=ACCUMULATED,
        max_epochs=2 if saved.exists() else 1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[AtTheEnd()],
        default_root_dir=str(folder),
    )
    module = Module()
    batches = DataLoader(samples(steps), BATCH)
    trainer.fit(module, batches, ckpt_path=str(saved) if saved.exists() else None)
    return module, remembered


def _remembered(engines):
    return [engine.remembered() for engine in engines.values()]


def _note_loads():
    """Return a list to which is added what an engine remembers after loading."""
    loaded = []
    load = Engine.load_state_dict

    def noting(engine, state):
        load(engine, state)
        loaded.append(copy.deepcopy(engine.remembered()))

    Engine.load_state_dict = noting
    return loaded


def train(rank, port, framework, steps, how, folder, number):
    """Be one rank: train, and write what came of it."""
    os.environ |= rank_variables(rank, RANKS, port)
    torch.set_num_threads(1)
    loaded = _note_loads()
    model, remembered = globals()[f"with_{framework}"](how, steps, folder)
    values = {name: value.detach() for name, value in model.state_dict().items()}
    written = {"values": values, "remembered": remembered, "loaded": loaded}
    torch.save(written, f"training-{number}-rank-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def main():
    """Do the trainings one after another."""
    framework, steps, *jobs = sys.argv[1:]
    import_module(f"comm_plan.integrations.{framework}")
    for number, (how, folder) in enumerate(zip(jobs[::2], jobs[1::2], strict=True)):
        Path(folder).mkdir(exist_ok=True)
        with reserved_port() as port:
            job = (port, framework, int(steps), how, Path(folder), number)
            start_processes(train, job, RANKS, start_method="fork")


if __name__ == "__main__":
    main()
