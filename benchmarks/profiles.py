"""Profiles of published models, for machines that cannot compute them themselves.

The sizes are the models' own. The times are chosen, and said to be: a GPU that trains
ResNet-50 at about 100 images a second, as the K80 and P40 of the papers' clusters do.
"""

import torch

from comm_plan.plans import Profile
from comm_plan.profiler import profile_from_model
from comm_plan.workloads.resnet import ResNet50

FORWARD_S = 0.100
BACKWARD_S = 0.200
UPDATE_S = 0.010
BATCH_SIZE = 32

WIDTH = 64
"""Of the first stage, in the paper."""

NARROW = 16
"""Width of a ResNet-50 that has as many tensors and a thirteenth of the elements."""


def resnet50(width: int = WIDTH) -> Profile:
    """Return the profile of ResNet-50 on ImageNet, at one speed whatever its width."""
    with torch.device("meta"):
        model = ResNet50(width=width)
        images = torch.empty(BATCH_SIZE, 3, 224, 224)
    return profile_from_model(
        model,
        images,
        name="resnet50" if width == WIDTH else f"resnet50, width {width}",
        forward_s=FORWARD_S,
        backward_s=BACKWARD_S,
        update_s=UPDATE_S,
        batch_size=BATCH_SIZE,
        device_name="about 100 images/s",
    )
