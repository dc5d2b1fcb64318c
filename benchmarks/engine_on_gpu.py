"""What the engine and compression cost on a GPU: iterations over NCCL, of one rank.

Nothing has to be moved between ranks, so what is left is computation, what the engine
does around it, and what encoding and decoding take. Stock DDP, the engine with DDP's
own buckets, and the same buckets by every method run in turns within one run. Writes a
table (Markdown) and the figures (JSON) to ``benchmarks/results``::

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
from comm_plan.benchmarks.prediction_rounds import DDP, ddp_block
from comm_plan.planner import Settings, make_problem, solve
from comm_plan.plans import (
    Bf16,
    Bucket,
    CollectiveCost,
    DoubleSqueeze,
    Fp16,
    Network,
    PartitionTopK,
    Plan,
    PowerSgd,
    Profile,
    Qsgd,
    SparDL,
    TernGrad,
    TopK,
    Vgc,
)
from comm_plan.profiler import measure
from comm_plan.transports.base import Transport
from comm_plan.transports.distributed import TorchTransport
from comm_plan.tuner.trials import Trials
from comm_plan.workloads import load

METHODS = {
    "fp16": Fp16(),
    "bf16": Bf16(),
    "DoubleSqueeze, 4 bits": DoubleSqueeze(bits=4),
    "QSGD, 4 bits": Qsgd(bits=4),
    "TernGrad": TernGrad(),
    "PowerSGD, rank 2": PowerSgd(rank=2),
    "top-k, 1 %": TopK(density=0.01),
    "partition top-k, 1 %": PartitionTopK(density=0.01),
    "SparDL, 1 %": SparDL(density=0.01),
    "VGC": Vgc(),
}
ENGINE = "engine, DDP's buckets"
WARM_UP = 5


def plans(profile: Profile) -> dict[str, Plan]:
    """Return DDP's buckets, dense and by every method, for one rank."""
    cost = CollectiveCost.affine(1e-4, 1e-9)  # DDP's buckets do not depend on it
    network = Network(backend="nccl", world_size=2, collectives={"allreduce": cost})
    for_two = solve(make_problem(profile, network, Settings()), "threshold")
    dense = for_two.model_copy(update={"world_size": 1, "predicted": None})
    made = {ENGINE: dense}
    for name, spec in METHODS.items():
        buckets = tuple(
            Bucket(
                tensors=bucket.tensors,
                compressor=spec,
                collective=spec.default_collective(),
            )
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
    seconds: dict[str, list[float]] = {name: [] for name in (DDP, *every)}
    for _ in range(rounds):
        for name in (*seconds, *reversed(seconds)):
            if name == DDP:
                of_block = ddp_block(name, stock, transport, iterations, WARM_UP)
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
