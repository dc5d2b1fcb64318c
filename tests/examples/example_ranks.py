"""Trains an example by several plans and by DDP, one after the other. Runs as one rank.

    python -m comm_plan.tests.support.forked MODULE RANKS EXAMPLE FOLDER

FOLDER holds the plans, ``METHOD.json`` or, of the GAN, ``METHOD-0.json`` and
``METHOD-1.json``. Rank 0 writes to FOLDER/report, as JSON, for each method: the losses,
whether the ranks have the same parameters, and whether they are those of DDP.
"""

import json
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import comm_plan
from comm_plan.runtime.second_moments import MicroBatchSecondMoments

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = {"gan": 200}
"""Of each example; 40 of all others."""
REPORT = "report"


def models_of(name, example):
    """Return what the example trains."""
    torch.manual_seed(0)
    if name == "gan":
        return [example["perceptron"](example["NOISE"], 2), example["perceptron"](2, 1)]
    make = {"gpt": "Gpt", "language_model": "LanguageModel", "images": "network"}[name]
    return [example[make]()]


def trained(name, example, plans):
    """Return losses and parameters after training by ``plans``; None: by DDP."""
    models = models_of(name, example)
    parts = example.get("MICRO_BATCHES")
    engines = []
    if plans is None:
        models = [DistributedDataParallel(model) for model in models]
        no_sync = models[0].no_sync
    else:
        for model, plan in zip(models, plans, strict=True):
            moments = None
            if parts is not None and plan.stem == "vgc":
                moments = MicroBatchSecondMoments(model, parts)
            engine = comm_plan.parallelize(model, str(plan), second_moments=moments)
            engines.append(engine)
        no_sync = engines[0].no_sync
    accumulates = [] if parts is None else [no_sync]
    losses = example["train"](*models, STEPS.get(name, 40), *accumulates)
    for engine in engines:
        engine.close()
    parameters = [p.detach().flatten() for model in models for p in model.parameters()]
    return losses, torch.cat(parameters)


def main():
    """Train by everything there is a plan for."""
    name, folder = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sys.path.insert(0, str(EXAMPLES))
    example = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    files = sorted(Path(folder).glob("*.json"))
    methods = {path.stem.split("-")[0] for path in files}
    plans = {m: [p for p in files if p.stem.split("-")[0] == m] for m in methods}
    _, of_ddp = trained(name, example, None)
    report = {}
    for method in sorted(methods):
        losses, own = trained(name, example, plans[method])
        rank_0s = own.clone()
        dist.broadcast(rank_0s, 0)
        same = torch.tensor([torch.equal(own, rank_0s)], dtype=torch.int32)
        dist.all_reduce(same, dist.ReduceOp.MIN)
        report[method] = {
            "losses": losses,
            "agree": bool(same),
            "as_ddp": torch.equal(own, of_ddp),
        }
    if dist.get_rank() == 0:
        (Path(folder) / REPORT).write_text(json.dumps(report))
    dist.barrier()
    dist.destroy_process_group()
