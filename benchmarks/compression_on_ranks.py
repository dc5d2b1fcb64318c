"""Runs as one rank: what compressors cost while all ranks compress at once.

Gradients get ready on all ranks at the same moments, so ranks that share a machine's
cores compress at the same time, and what one rank alone measures is too little. So does
``profile`` measure. Rank 0 writes the profile with the costs; with ``--alone`` it then
measures some kinds again while the others wait, and writes those costs too.

    python -m comm_plan.benchmarks.compression_on_ranks PROFILE OUTPUT --kinds topk
"""

import argparse
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from comm_plan.plans import Profile
from comm_plan.profiler import compression_costs
from comm_plan.transports.distributed import TorchTransport


def main() -> None:
    """Run as one rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profile", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--kinds", default="dense,fp16,topk,model_topk,terngrad,qsgd")
    parser.add_argument("--alone", type=Path, help="profile with one rank's costs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    kinds = arguments.kinds.split(",")
    profile = Profile.load(arguments.profile)
    numel = profile.model.parameters
    costs = compression_costs(numel, kinds=kinds, transport=TorchTransport())
    if dist.get_rank() == 0:
        profile.model_copy(update={"compression": costs}).save(arguments.output)
        if arguments.alone is not None:
            alone = compression_costs(numel, kinds=kinds)
            profile.model_copy(update={"compression": alone}).save(arguments.alone)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
