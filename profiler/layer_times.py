"""A profile from a table of layers: what traces and papers give.

A CSV file with a heading, a row for each layer in the order of forward::

    layer,numel,forward_s,backward_s
    conv1,9408,0.0021,0.0040
    fc,513000,0.0003,0.0007

Backward runs from the last row to the first, and a layer's gradient is ready when its
time is over. A layer is one tensor of float32. Its shape is not known, so it counts as
one row: top-k compresses it, as it does weights, and PowerSGD, which needs a matrix,
sends it whole.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from comm_plan.errors import InputError
from comm_plan.plans import Device, Model, Profile, TensorTiming, fingerprint
from comm_plan.plans.document import refused_as
from comm_plan.plans.files import read_text

COLUMNS = ("layer", "numel", "forward_s", "backward_s")


@dataclass(frozen=True)
class Layer:
    """A row of the table."""

    name: str
    numel: int
    forward_s: float
    backward_s: float


def profile_from_layer_times(path: Path, *, batch_size: int = 1) -> Profile:
    """Return the profile of the layers in ``path``; the update counts as free.

    Args:
        path: the table.
        batch_size: samples to which the times belong.

    Raises:
        InputError: the file cannot be read, lacks a column or has no layers, a cell is
            not what its column says, or a line has more cells than the first; the line
            is named.
    """
    layers = read(path)
    with refused_as(str(path)):
        return _profile(path, layers, batch_size)


def _profile(path: Path, layers: Sequence[Layer], batch_size: int) -> Profile:
    backward = layers[::-1]
    ready_s = accumulate(layer.backward_s for layer in backward)
    tensors = tuple(
        TensorTiming(
            name=layer.name,
            layer=layer.name,
            shape=(1, layer.numel),
            numel=layer.numel,
            dtype="float32",
            ready_s=seconds,
        )
        for layer, seconds in zip(backward, ready_s, strict=True)
    )
    return Profile(
        model=Model(
            name=path.stem,
            fingerprint=fingerprint((t.name, t.shape, t.dtype) for t in tensors),
            parameters=sum(layer.numel for layer in layers),
        ),
        device=Device(type="cpu", name=f"table {path.name}"),
        environment={"synthetic": "times from a table of layers; the update is free"},
        batch_size=batch_size,
        forward_s=sum(layer.forward_s for layer in layers),
        backward_s=sum(layer.backward_s for layer in layers),
        update_s=0.0,
        tensors=tensors,
    )


def read(path: Path) -> list[Layer]:
    """Return the rows of the table.

    Raises:
        InputError: see :func:`profile_from_layer_times`.
    """
    text = read_text(path)
    rows = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
    missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise InputError(
            f"{path}: column {missing[0]} is missing: the first line must be "
            f"{','.join(COLUMNS)}"
        )
    try:
        layers = [_layer(path, rows.line_num, row) for row in rows]
    except csv.Error as error:
        raise InputError(f"{path}, line {rows.line_num}: {error}") from None
    if not layers:
        raise InputError(f"{path}: there are no layers: give a line for each")
    names = [layer.name for layer in layers]
    if len(set(names)) < len(names):
        doubled = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path}: layer {doubled} is listed twice: rename one")
    return layers


def _layer(path: Path, line: int, row: dict[str, str | None]) -> Layer:
    if None in row:  # where csv puts what is beyond the columns
        raise InputError(
            f"{path}, line {line}: more cells than columns: write numbers such as "
            "9408 and 0.0021, without other commas"
        )
    try:
        layer = Layer(
            name=row["layer"] or "",
            numel=int(row["numel"] or ""),
            forward_s=float(row["forward_s"] or ""),
            backward_s=float(row["backward_s"] or ""),
        )
    except ValueError as error:
        said, _, given = str(error).rpartition(": ")
        number = "whole number" if "int()" in said else "number"
        raise InputError(f"{path}, line {line}: {given} is no {number}") from None
    seconds = layer.forward_s, layer.backward_s
    in_range = all(0 <= each < math.inf for each in seconds)
    if not (layer.name and layer.numel > 0 and in_range):
        raise InputError(
            f"{path}, line {line}: give a name, a numel above 0, and seconds of 0 or "
            "more"
        )
    return layer
