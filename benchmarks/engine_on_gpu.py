"""What the engine and compression cost on a GPU: iterations over NCCL, of one rank.

Nothing has to be moved between ranks, so what is left is computation, what the engine
does around it, and what encoding and decoding take. DDP, without and with its own
compression, the engine with DDP's buckets, and the same buckets by every method run in
turns within one run. Writes a table (Markdown) and the figures (JSON) to
``benchmarks/results``::

    python -m comm_plan.benchmarks.engine_on_gpu
"""

from __future__ import annotations

import argparse
import statistics
import sys

import torch
import torch.distributed as dist

from comm_plan import units
from comm_plan.benchmarks import tables
from comm_plan.benchmarks.engine_on_ranks import ddp_buckets
from comm_plan.benchmarks.prediction_rounds import DDP, HOOKS, ddp_block
from comm_plan.plans import METHODS, Bucket, Plan, Profile
from comm_plan.profiler import measure
from comm_plan.transports.base import Transport
from comm_plan.transports.distributed import TorchTransport
from comm_plan.tuner.trials import Trials
from comm_plan.workloads import load

REFERENCES = {**HOOKS, "ddp, PowerSGD hook, rank 2": "powersgd 2"}
"""PyTorch's own, by hook."""

VARIANTS = {
    "fp16": "fp16",
    "bf16": "bf16",
    "DoubleSqueeze, 4 bits": "doublesqueeze",
    "QSGD, 4 bits": "qsgd",
    "TernGrad": "terngrad",
    "PowerSGD, rank 2": "powersgd",
    "top-k, 1 %": "topk",
    "partition top-k, 1 %": "partition-topk",
    "SparDL, 1 %": "spardl",
    "VGC": "vgc",
}
"""Methods, as ``solve --compressor`` calls them, by what the table does."""

ENGINE = "engine, DDP's buckets"
WARM_UP = 5


def plans(profile: Profile) -> dict[str, Plan]:
    """Return DDP's buckets, dense and by every method, for one rank."""
    for_two = ddp_buckets(profile, 2, "nccl")  # a network has two ranks or more
    dense = for_two.model_copy(update={"world_size": 1, "predicted": None})
    made = {ENGINE: dense}
    for name, method in VARIANTS.items():
        spec, collective = METHODS[method]
        buckets = tuple(
            Bucket(tensors=bucket.tensors, compressor=spec, collective=collective)
            for bucket in dense.buckets
        )
        made[name] = dense.model_copy(update={"buckets": buckets})
    return made


def measured(
    workload: str, transport: Transport, rounds: int, iterations: int
) -> dict[str, list[float]]:
    """Return the seconds of each iteration, by DDP and by each plan."""
    profile = measure(load(workload), device=str(transport.device), iterations=20)
    every = plans(profile)
    trials = Trials(load(workload), transport, on_nonfinite="propagate")
    stock = load(workload)
    stock.model.to(transport.device)
    seconds: dict[str, list[float]] = {name: [] for name in (*REFERENCES, *every)}
    for _ in range(rounds):
        for name in (*seconds, *reversed(seconds)):
            if name in REFERENCES:
                hook = REFERENCES[name]
                of_block = ddp_block(hook, stock, transport, iterations, WARM_UP)
            else:
                block = trials.run(every[name], iterations, warm_up=WARM_UP)
                of_block = block.seconds.tolist()
            seconds[name] += of_block
            print(name, units.seconds(statistics.median(of_block)), file=sys.stderr)
    return seconds


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workload", nargs="?", default="resnet50")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=10)
    arguments = parser.parse_args()
    device, backend, where = torch.device("cpu"), "gloo", "CPU"
    if arguments.device == "cuda":
        device, backend = torch.device("cuda", 0), "nccl"
        torch.cuda.set_device(device)
        where = torch.cuda.get_device_name()
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    seconds = measured(
        arguments.workload,
        TorchTransport(device=device),
        arguments.rounds,
        arguments.iterations,
    )
    dist.destroy_process_group()
    middle = {name: statistics.median(of) for name, of in seconds.items()}
    rows = [
        [name, units.seconds(time_s), f"{time_s / middle[DDP]:.3f}"]
        for name, time_s in middle.items()
    ]
    parts = [
        f"# The engine and compression on one rank: {arguments.workload}",
        tables.markdown(["variant", "iteration", "to DDP"], rows),
        f"{where}, torch {torch.__version__}, {backend}; in turns within one run, "
        f"medians of {len(seconds[DDP])} iterations.",
    ]
    kind = "gpu" if device.type == "cuda" else "cpu"
    print(tables.save(f"engine-on-{kind}-{arguments.workload}", parts, seconds))


if __name__ == "__main__":
    main()
