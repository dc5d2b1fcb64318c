"""Runs as one rank: what compressors cost while all ranks compress at once.

Gradients get ready on all ranks at the same moments, so ranks that share a machine's
cores compress at the same time, and what one rank alone measures is too little. Here
all ranks measure every point together; a cost is that of the slowest rank. Rank 0
writes the profile with the costs; with ``--alone`` it then measures some kinds again
while the others wait, and writes those costs too.

    python -m comm_plan.benchmarks.compression_on_ranks PROFILE OUTPUT --kinds topk
"""

import argparse
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from comm_plan.plans import CompressionCost, Profile
from comm_plan.profiler import compression_costs

Costs = dict[str, tuple[CompressionCost, ...]]


def at_once(numel: int, kinds: list[str]) -> Costs:
    """Return the slowest rank's costs; the ranks wait for each other at every point."""
    dist.barrier()
    mine = compression_costs(
        numel, kinds=kinds, progress=lambda done, total: dist.barrier()
    )
    everyone: list[Costs] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return {
        kind: tuple(map(_slowest, *(costs[kind] for costs in everyone)))
        for kind in kinds
    }


def _slowest(*costs: CompressionCost) -> CompressionCost:
    return costs[0].model_copy(
        update={
            "compress_s": max(cost.compress_s for cost in costs),
            "encode_s": max(cost.encode_s for cost in costs),
            "decompress_s": max(cost.decompress_s for cost in costs),
        }
    )


def main() -> None:
    """Run as one rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profile", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--kinds", default="dense,fp16,topk,terngrad,qsgd")
    parser.add_argument("--alone", type=Path, help="profile with one rank's costs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    kinds = arguments.kinds.split(",")
    profile = Profile.load(arguments.profile)
    numel = profile.model.parameters
    costs = at_once(numel, kinds)
    if dist.get_rank() == 0:
        profile.model_copy(update={"compression": costs}).save(arguments.output)
        if arguments.alone is not None:
            alone = compression_costs(numel, kinds=kinds)
            profile.model_copy(update={"compression": alone}).save(arguments.alone)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
