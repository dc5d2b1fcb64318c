"""Second moments of known layers from their input and their output's gradient.

For a linear layer without further dimensions the gradient of sample b is the outer
product of g_b and x_b, so its square is the outer product of the squares and the sum
over samples one matrix product. With positions within a sample (a sequence, the pixels
of a convolution) the gradient of a sample is itself a sum, and squaring comes after it:
per-sample gradients are formed for some samples at a time: on a CPU for as few as fit
into its cache, of large layers for one, whose square is added at once.

Every form takes ``(module, x, g)``: x [B, ...] the input, g [B, ...] the gradient of
the batch's mean loss with respect to the output, and returns a tensor with the shape of
the parameter. Legend: B batch, T positions within a sample, G groups, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Form = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]

CHUNK_NUMEL = 1 << 24
"""Elements of per-sample gradients that exist at once (or one sample's, if more)."""

CACHED_NUMEL = 1 << 18
"""The same on a CPU."""


def linear_weight(module: nn.Linear, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Return [out, in]; x is [B, ..., in], g is [B, ..., out]."""
    x = x.reshape(len(x), -1, module.in_features)
    g = g.reshape(len(g), -1, module.out_features)
    if x.shape[1] == 1:
        return g[:, 0].square().T @ x[:, 0].square()
    total = torch.zeros_like(module.weight)
    for chunk in _chunks(x, total.numel()):
        _add_squares(total, g[chunk].mT, x[chunk])
    return total


def convolution_weight(
    module: nn.Conv1d | nn.Conv2d, x: torch.Tensor, g: torch.Tensor
) -> torch.Tensor:
    """Return [out, C / G, *kernel]; x is [B, C, *space], g is [B, out, *space]."""
    groups = module.groups
    g = g.reshape(len(g), groups, module.out_channels // groups, -1)
    columns_numel = module.weight[0].numel() * groups * g.shape[-1]
    total = g.new_zeros(groups, g.shape[2], module.weight[0].numel())
    for chunk in _chunks(x, max(total.numel(), columns_numel)):
        columns = _patches(module, x[chunk]).unflatten(1, (groups, -1))
        _add_squares(total, g[chunk], columns.mT)
    return total.view_as(module.weight)


def embedding_weight(
    module: nn.Embedding, x: torch.Tensor, g: torch.Tensor
) -> torch.Tensor:
    """Return [rows, width]; x [B, ...] holds row numbers, g is [B, ..., width].

    The gradients of one row within one sample are summed before they are squared.
    """
    rows = module.num_embeddings
    sample = torch.arange(len(x), device=x.device).view(-1, *[1] * (x.ndim - 1))
    keys, place = (sample * rows + x).flatten().unique(return_inverse=True)
    by_sample = g.new_zeros(len(keys), module.embedding_dim)
    by_sample.index_add_(0, place, g.reshape(-1, module.embedding_dim))
    total = torch.zeros_like(module.weight)
    total.index_add_(0, keys % rows, by_sample.square_())
    if module.padding_idx is not None:
        total[module.padding_idx] = 0
    return total


def layer_norm_weight(
    module: nn.LayerNorm, x: torch.Tensor, g: torch.Tensor
) -> torch.Tensor:
    """Return [*normalized_shape]; x and g are [B, ..., *normalized_shape]."""
    normal = functional.layer_norm(x, module.normalized_shape, eps=module.eps)
    return _over_leading(module, g * normal)


def rms_norm_weight(
    module: nn.RMSNorm, x: torch.Tensor, g: torch.Tensor
) -> torch.Tensor:
    """Return [*normalized_shape]; x and g are [B, ..., *normalized_shape]."""
    normal = functional.rms_norm(x, list(module.normalized_shape), eps=module.eps)
    return _over_leading(module, g * normal)


def group_norm_weight(
    module: nn.GroupNorm, x: torch.Tensor, g: torch.Tensor
) -> torch.Tensor:
    """Return [C]; x and g are [B, C, ...]."""
    normal = functional.group_norm(x, module.num_groups, eps=module.eps)
    return channel_bias(module, x, g * normal)


def linear_bias(module: nn.Linear, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Return [out]; g is [B, ..., out]."""
    return g.reshape(len(g), -1, g.shape[-1]).sum(1).square_().sum(0)


def layer_norm_bias(
    module: nn.LayerNorm, x: torch.Tensor, g: torch.Tensor
) -> torch.Tensor:
    """Return [*normalized_shape]; g is [B, ..., *normalized_shape]."""
    return _over_leading(module, g)


def channel_bias(module: nn.Module, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Return [C]; g is [B, C, ...]."""
    return g.reshape(len(g), g.shape[1], -1).sum(2).square_().sum(0)


CLOSED_FORMS: dict[type[nn.Module], dict[str, Form]] = {
    nn.Linear: {"weight": linear_weight, "bias": linear_bias},
    nn.Conv1d: {"weight": convolution_weight, "bias": channel_bias},
    nn.Conv2d: {"weight": convolution_weight, "bias": channel_bias},
    nn.Embedding: {"weight": embedding_weight},
    nn.LayerNorm: {"weight": layer_norm_weight, "bias": layer_norm_bias},
    nn.RMSNorm: {"weight": rms_norm_weight},
    nn.GroupNorm: {"weight": group_norm_weight, "bias": channel_bias},
}
"""For each kind of layer the form of each of its parameters."""


def closed_forms(module: nn.Module) -> Mapping[str, Form] | None:
    """Return the forms for ``module``, if its forward is that of a known layer."""
    for kind, forms in CLOSED_FORMS.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return forms
    return None


def _chunks(x: torch.Tensor, numel: int) -> list[slice]:
    """Return slices of the samples, which need ``numel`` elements each."""
    size = max(1, (CACHED_NUMEL if x.is_cpu else CHUNK_NUMEL) // numel)
    return [slice(start, start + size) for start in range(0, len(x), size)]


def _add_squares(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add the squares of ``left`` @ ``right`` to ``total``, summed over samples.

    Args:
        total: [..., m, n].
        left: [samples, ..., m, k].
        right: [samples, ..., k, n].
    """
    products = left @ right
    if len(products) == 1:
        total.addcmul_(products[0], products[0])
    else:
        total += products.square_().sum(0)


def _over_leading(
    module: nn.LayerNorm | nn.RMSNorm, gradient: torch.Tensor
) -> torch.Tensor:
    shape = module.normalized_shape
    return gradient.reshape(len(gradient), -1, *shape).sum(1).square_().sum(0)


def _patches(module: nn.Conv1d | nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
    """Return [B, C * kernel, T]: what each output position sees."""
    if _sees_points(module):
        return x.flatten(2)
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    x = functional.pad(x, _padding(module), mode=mode)
    if isinstance(module, nn.Conv1d):
        x = x.unsqueeze(2)
    return functional.unfold(
        x,
        kernel_size=_plane(module.kernel_size),
        dilation=_plane(module.dilation),
        stride=_plane(module.stride),
    )


def _sees_points(module: nn.Conv1d | nn.Conv2d) -> bool:
    """Return whether each output position sees just its own input position."""
    ones = (*module.kernel_size, *module.stride)
    return all(size == 1 for size in ones) and not any(_padding(module))


def _plane(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return sizes for two dimensions, of which the first may be missing."""
    return (1,) * (2 - len(sizes)) + sizes


def _padding(module: nn.Conv1d | nn.Conv2d) -> list[int]:
    """Return the padding, last dimension first: before, after, before, after."""
    if module.padding == "valid":
        return [0, 0] * len(module.kernel_size)
    if module.padding == "same":
        sizes = zip(module.dilation, module.kernel_size, strict=True)
        totals = [dilation * (kernel - 1) for dilation, kernel in sizes]
        pairs = [(total // 2, total - total // 2) for total in totals]
    else:
        pairs = [(int(padding), int(padding)) for padding in module.padding]
    return [size for pair in reversed(pairs) for size in pair]
