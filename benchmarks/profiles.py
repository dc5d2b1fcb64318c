"""Profiles of published models, for machines that cannot compute them themselves.

The sizes are the models' own. The times are chosen, and said to be: a GPU that trains
ResNet-50 at about 100 images a second, as the K80 and P40 of the papers' clusters do.
"""

from collections.abc import Callable

import torch
from torch import nn

from comm_plan.plans import Profile
from comm_plan.profiler import profile_from_model
from comm_plan.workloads.cifarnet import CifarNet
from comm_plan.workloads.resnet import ResNet50

FORWARD_S = 0.100
BACKWARD_S = 0.200
UPDATE_S = 0.010
BATCH_SIZE = 32


def resnet50() -> Profile:
    """Return the profile of ResNet-50 on ImageNet: 161 tensors, 102 MB."""
    return _timed("resnet50", ResNet50, pixels=224)


def cifarnet() -> Profile:
    """Return the profile of CifarNet on CIFAR-10: 10 tensors, 4.3 MB."""
    return _timed("cifarnet", CifarNet, pixels=24)


def _timed(name: str, build: Callable[[], nn.Module], pixels: int) -> Profile:
    """Return the profile of what ``build`` makes, at the times above.

    Args:
        name: of the model.
        build: makes it.
        pixels: of its images, in width and height.
    """
    with torch.device("meta"):
        model = build()
        images = torch.empty(BATCH_SIZE, 3, pixels, pixels)
    return profile_from_model(
        model,
        images,
        name=name,
        forward_s=FORWARD_S,
        backward_s=BACKWARD_S,
        update_s=UPDATE_S,
        batch_size=BATCH_SIZE,
        device_name="about 100 images/s",
    )
