"""The networks of the papers: their sizes, their gradients in the order of backward.

How long the layers take is not printed. Backward is given twice forward's time and
spread over the layers by floating-point operations
(:mod:`comm_plan.profiler.synthetic`); how long an iteration takes is up to the chapter.
"""

from __future__ import annotations

from functools import cache

import torch

from comm_plan.plans import Profile
from comm_plan.profiler import profile_from_model
from comm_plan.workloads import load

EDGES = {"inception-v4": 299}
"""Pixels of the images, where they are not 224."""


@cache
def unit_profile(name: str, batch_size: int) -> Profile:
    """Return the profile of the workload ``name``, whose iteration takes a second."""
    with torch.device("meta"):
        workload = load(name, batch_size=batch_size)
        edge = EDGES.get(name, 224)
        images = torch.empty(batch_size, 3, edge, edge)
    return profile_from_model(
        workload.model,
        images,
        name=name,
        forward_s=1 / 3,
        backward_s=2 / 3,
        update_s=0.0,
        batch_size=batch_size,
    )
