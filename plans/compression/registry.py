"""All compressors: one line each, and everything else follows from the specs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias, Union

from pydantic import Field, ValidationError

from comm_plan.errors import InputError, unknown
from comm_plan.plans.compression.dense import Dense
from comm_plan.plans.compression.double_squeeze import DoubleSqueeze
from comm_plan.plans.compression.half import Bf16, Fp16
from comm_plan.plans.compression.powersgd import PowerSgd
from comm_plan.plans.compression.qsgd import Qsgd
from comm_plan.plans.compression.rows import Rows
from comm_plan.plans.compression.spec import Spec
from comm_plan.plans.compression.terngrad import TernGrad
from comm_plan.plans.compression.topk import (
    ModelTopK,
    PartitionTopK,
    SparDL,
    TopK,
)
from comm_plan.plans.compression.words import Hybrid, Strom, Vgc
from comm_plan.plans.problems import first_problem

SPECS: tuple[type[Spec], ...] = (
    Dense,
    Fp16,
    Bf16,
    Qsgd,
    DoubleSqueeze,
    TernGrad,
    PowerSgd,
    TopK,
    ModelTopK,
    PartitionTopK,
    SparDL,
    Vgc,
    Strom,
    Hybrid,
)
"""Every compressor that can be asked for; beside them plans hold ``Rows``."""

if TYPE_CHECKING:
    CompressorSpec: TypeAlias = Spec
else:
    CompressorSpec = Annotated[Union[(*SPECS, Rows)], Field(discriminator="kind")]

KINDS: dict[str, type[Spec]] = {
    spec.model_fields["kind"].default: spec for spec in SPECS
}
"""The spec of each ``kind`` that a plan may name."""

METHODS: dict[str, tuple[Spec, str]] = {
    name: (spec.example(), collective)
    for spec in SPECS
    for name, collective in spec.methods.items()
}
"""What a user may ask for by name: compressor and collective together."""

BY_DEFAULT = tuple(name for spec in SPECS for name in spec.by_default)
"""The methods that ``auto`` may use unless told otherwise."""


def spec_class(kind: str) -> type[Spec]:
    """Return the spec of the compressor ``kind``; also that of sparse gradients.

    Raises:
        InputError: there is none.
    """
    if kind == Rows.model_fields["kind"].default:
        return Rows
    if kind not in KINDS:
        raise unknown("compressor", kind, KINDS)
    return KINDS[kind]


def method(name: str, **options: object) -> tuple[Spec, str]:
    """Return the spec and collective that a user's word for a method means.

    Args:
        name: one of :data:`METHODS`.
        options: fields of its spec that shall differ from the default, such as
            ``density`` of top-k or ``alpha`` of VGC; numbers may be text.

    Raises:
        InputError: no such method, no such field, or a value out of range.
    """
    if name not in METHODS:
        raise unknown("compressor", name, METHODS)
    spec, collective = METHODS[name]
    own = spec.model_dump(exclude_unset=True)
    given = {key: _read(value) for key, value in options.items()}
    try:
        return type(spec).model_validate(own | given), collective
    except ValidationError as error:
        fields = ", ".join(key for key in type(spec).model_fields if key != "kind")
        raise InputError(
            f"compressor {name}: {first_problem(error)}; it has "
            f"{fields or 'no options'}"
        ) from None


def _read(value: object) -> object:
    """Return a whole number written as text as a number: pydantic's literals ask so."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value
