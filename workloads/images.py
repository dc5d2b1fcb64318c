"""Labelled images as batches: scaled, and if wanted cropped and mirrored at random.

What happens to a sample in an epoch is drawn from (seed, epoch) for all samples at
once. So it is the same whichever rank gets the sample, however many ranks there are,
and in a run that is resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from comm_plan.workloads import files
from comm_plan.workloads.base import MakeOptimizer, Workload
from comm_plan.workloads.data import (
    Source,
    cross_entropy,
    device_of,
    random_images,
    random_stream,
    shard_indices,
)
from comm_plan.workloads.files import CLASSES, Labelled
from comm_plan.workloads.modes import evaluating

EVALUATION_BATCH = 500
FIRST_STREAM = 500_000
"""Random streams from here on are for crops; those before are for the data's order."""


@dataclass(frozen=True)
class Scale:
    """What images are brought to mean 0 and deviation 1 with, a number a channel.

    Attributes:
        largest: the value of white; the others are parts of it.
        mean: of the training images.
        deviation: likewise.
    """

    largest: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return float32 images of the same shape, [N, channels, height, width]."""
        mean, deviation = (
            torch.tensor(values).view(-1, 1, 1)
            for values in (self.mean, self.deviation)
        )
        return (images.float() / self.largest - mean) / deviation


@dataclass(frozen=True)
class Crop:
    """Squares cut out of images: of their middle, or at random.

    Attributes:
        size: height and width of what is cut out.
        pad: zeros that are put around the image before a random cut.
        mirror: whether every other image is mirrored, at random.
    """

    size: int
    pad: int = 0
    mirror: bool = False

    def middle(self, images: torch.Tensor) -> torch.Tensor:
        """Return [N, channels, size, size]."""
        edge = (images.shape[-1] - self.size) // 2
        inside = slice(edge, edge + self.size)
        return images[..., inside, inside]

    def random(self, images: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
        """Return [N, channels, size, size].

        Args:
            images: [N, channels, height, width].
            chances: [N, 3], between 0 and 1: row, column and mirror of each image.
        """
        padded = F.pad(images, (self.pad,) * 4)
        places = torch.tensor([side - self.size + 1 for side in padded.shape[-2:]])
        rows, columns = (chances[:, :2] * places).long().unbind(1)
        windows = padded.unfold(2, self.size, 1).unfold(3, self.size, 1)
        cut = windows[torch.arange(len(images)), :, rows, columns]
        if not self.mirror:
            return cut
        return torch.where(chances[:, 2].view(-1, 1, 1, 1) < 0.5, cut.flip(3), cut)


def fifth_held_out(images: Labelled) -> tuple[Labelled, Labelled]:
    """Return four fifths to train on and one to judge by, the same for every seed."""
    order = torch.randperm(len(images), generator=random_stream(0, 0))
    held_out, training = (
        Labelled(images.images[rows], images.labels[rows])
        for rows in order.tensor_split([len(order) // 5])
    )
    return training, held_out


def labelled(
    training: Labelled,
    held_out: Labelled,
    batch_size: int,
    scale: Scale,
    crop: Crop,
    augment: bool,
) -> Source:
    """Return the batches of a data set that lies in memory, and held-out accuracy.

    Args:
        training: what to train on.
        held_out: what to judge by.
        batch_size: samples in a batch of one rank.
        scale: applied to all images.
        crop: of the middle where ``augment`` does not say at random.
        augment: whether training images are cropped and mirrored at random.
    """

    def batches(rank: int, world_size: int, epoch: int, seed: int) -> Iterator[Any]:
        samples = len(training)
        stream = random_stream(seed, FIRST_STREAM + epoch)
        chances = torch.rand(samples, 3, generator=stream, dtype=torch.float64)
        for rows in shard_indices(samples, batch_size, rank, world_size, epoch, seed):
            images = scale(training.images[rows])
            cut = crop.random(images, chances[rows]) if augment else crop.middle(images)
            yield cut, training.labels[rows]

    def evaluate(model: nn.Module) -> tuple[str, float]:
        right = 0
        with evaluating(model), torch.no_grad():
            for rows in torch.arange(len(held_out)).split(EVALUATION_BATCH):
                images = crop.middle(scale(held_out.images[rows]))
                guess = model(images.to(device_of(model))).argmax(1).cpu()
                right += int((guess == held_out.labels[rows]).sum())
        return "accuracy", right / len(held_out)

    return Source(batches, evaluate)


@dataclass(frozen=True)
class DataSet:
    """Images that a user may have; where not, random ones of their shape do.

    Attributes:
        read: returns the training and the held-out images in a folder.
        scale: what they are scaled with.
    """

    read: Callable[[Path], tuple[Labelled, Labelled]]
    scale: Scale

    def source(
        self, folder: Path | None, batch_size: int, crop: Crop, augment: bool
    ) -> Source:
        """Return its batches; see :func:`labelled`.

        Raises:
            WorkloadError: ``folder`` does not hold the data set.
        """
        if folder is None:
            channels = len(self.scale.mean)
            return Source(random_images(batch_size, crop.size, CLASSES, channels))
        return labelled(*self.read(folder), batch_size, self.scale, crop, augment)

    def classified_by(
        self,
        model: nn.Module,
        optimizer: MakeOptimizer,
        *,
        name: str,
        folder: Path | None,
        batch_size: int,
        crop: Crop,
        augment: bool,
        epochs: int,
    ) -> Workload:
        """Return the training of ``model`` to name what an image shows.

        Args:
            model: from images to logits [N, 10].
            optimizer: returns it for the model's parameters.
            name: of the workload.
            folder: what holds the data set; None: random images.
            batch_size: samples in a batch of one rank.
            crop: see :func:`labelled`.
            augment: likewise.
            epochs: of the data set; of random images one will do.

        Raises:
            WorkloadError: ``folder`` does not hold the data set.
        """
        source = self.source(folder, batch_size, crop, augment)
        return Workload(
            name=name,
            model=model,
            optimizer=optimizer,
            batch_size=batch_size,
            batches=source.batches,
            evaluate=source.evaluate,
            loss=cross_entropy,
            epochs=1 if folder is None else epochs,
        )


CIFAR10 = DataSet(
    files.cifar10,
    Scale(255.0, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
)
MNIST = DataSet(files.mnist, Scale(255.0, (0.1307,), (0.3081,)))

AS_USUAL = Crop(32, pad=4, mirror=True)
"""How CIFAR-10 is augmented (He et al., CVPR 2016, section 4.2)."""
