r"""How far a fitted network is from fresh measurements of the same cluster.

Start one process a rank and give sizes in bytes to sweep a shorter range::

    torchrun --nproc-per-node 2 -m comm_plan.benchmarks.fit_check
    mpirun -n 2 python -m comm_plan.benchmarks.fit_check --backend mpi \
        --from 1024 --largest 65536

Rank 0 prints, for every collective and every size of ``--from`` bytes and more, what
the fit says and what a second sweep measured. The second sweep uses sizes between those
of the first as well, which the fit has never seen.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist

from comm_plan.commbench.sweep import geometric_sizes, measure
from comm_plan.plans.network import Network
from comm_plan.transports.base import Transport
from comm_plan.transports.distributed import TorchTransport

TARGET = 0.10


def main() -> None:
    """Measure, fit, measure afresh, compare."""
    options = _options()
    torch.set_num_threads(1)
    transport = _connect(options.backend)
    sizes = geometric_sizes(options.smallest, options.largest)
    fitted = measure(transport, sizes=sizes, budget_s=options.budget)
    seen = [size for size in sizes if size >= options.start]
    between = [size * 3 // 2 // 4 * 4 for size in seen[:-1]]
    fresh = measure(transport, sizes=[*seen, *between], budget_s=options.budget)
    if transport.rank == 0:
        _report(fitted, fresh)
    transport.close()
    if options.backend != "mpi":
        dist.destroy_process_group()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["gloo", "nccl", "mpi"], default="gloo")
    parser.add_argument("--smallest", type=int, default=4)
    parser.add_argument("--largest", type=int, default=64 * 2**20)
    parser.add_argument("--from", type=int, default=4 * 2**20, dest="start")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds a sweep")
    options = parser.parse_args()
    if options.start > options.largest:
        parser.error(f"--from {options.start} is above --largest {options.largest}")
    return options


def _connect(backend: str) -> Transport:
    if backend == "mpi":
        from comm_plan.transports.mpi import MpiTransport

        return MpiTransport()
    if backend == "nccl":
        torch.cuda.set_device(dist.get_node_local_rank(0))
    dist.init_process_group(backend)
    return TorchTransport()


def _report(fitted: Network, fresh: Network) -> None:
    print(
        f"{'collective':<16}{'nbytes':>12}{'fitted_s':>14}{'fresh_s':>14}{'error':>9}"
    )
    errors = []
    for name, cost in fresh.collectives.items():
        fit = fitted.collectives[name].fit
        if fit is None:
            raise SystemExit(f"{name} has no fit: give a network that was measured")
        for sample in cost.samples:
            fit_s = fit.seconds(sample.nbytes)
            errors.append(abs(fit_s / sample.median_s - 1))
            print(
                f"{name:<16}{sample.nbytes:>12}{fit_s:>14.6f}{sample.median_s:>14.6f}"
                f"{fit_s / sample.median_s - 1:>+9.1%}"
            )
    within = sum(error <= TARGET for error in errors)
    print(
        f"{within} of {len(errors)} within {TARGET:.0%}, worst {max(errors):.1%} "
        f"({fresh.backend}, {fresh.world_size} ranks)"
    )


if __name__ == "__main__":
    main()
