"""Which modules train and which do not: as the user has set them, but to evaluate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


def training(model: nn.Module) -> nn.Module:
    """Return ``model`` in training mode, but for what its owner has put out of it.

    Such as frozen batch norm. A model that is out of it as a whole, as pretrained ones
    come, is put into it as a whole.
    """
    return model if model.training else model.train()


@contextmanager
def kept(model: nn.Module) -> Iterator[None]:
    """Let every module of ``model`` train after the block if it did before."""
    before = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, trains in before:
            module.training = trains


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put all of ``model`` into evaluation mode for the length of the block."""
    with kept(model):
        model.eval()
        yield
