"""What every solver is given, and what every solver returns.

A solver decides where buckets end. How each tensor travels is settled before
(``Problem.assigned``: dense unless asked otherwise), except for the solvers that decide
that too (``lags``, ``auto``); those take their options from ``Problem.prices``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import ConfigDict, JsonValue, TypeAdapter

from comm_plan.arrays import FloatArray, IntArray
from comm_plan.errors import InputError
from comm_plan.planner import evidence
from comm_plan.planner.evidence import Accuracy
from comm_plan.planner.option import Option
from comm_plan.planner.schedule import BucketTimes, Compute, Schedule, simulate
from comm_plan.planner.solvers import (
    LARGEST_RATIO,
    MAX_RATIO,
    MIN_GAIN,
    TOLERANCE,
)
from comm_plan.plans.compression import METHODS, method
from comm_plan.plans.document import MAX_RANKS, refused_as
from comm_plan.plans.local import LocalSteps, steps_of
from comm_plan.plans.plan import Plan, labelled

if TYPE_CHECKING:
    from comm_plan.planner.prices import Prices
    from comm_plan.plans.profile import Profile

DDP_CAPS = (1 << 20, 25 << 20)
HOROVOD_CAPS = (128 << 20,)


@dataclass(frozen=True)
class Settings:
    """What a user may ask, beside the model and the network.

    A plan keeps what was asked for (``asked``), so that it can be solved again.

    Attributes:
        world_size: number of ranks to plan for. None: as measured; another one is an
            extrapolation, and the plan says so.
        algorithm: which closed form carries costs to another world size, for the
            collectives that have one of this name among their ``algorithms``. None:
            each one's first.
        link_bytes_per_s: a rank's link speed, for the lower bound. None: the best bus
            bandwidth that the network shows.
        compressor: forced upon every bucket, one of the names of ``METHODS``. None:
            dense, unless the solver decides.
        options: fields of that compressor's spec that shall differ from the default.
        dense_layers: patterns of layers or tensors never to be compressed. None: those
            that the method keeps dense by default.
        caps_nbytes: ``threshold`` closes a dtype's first bucket at the first cap, and
            so on; the last cap stays. Higher: fewer buckets.
        max_ratio: how much of a tensor may be left out, as a factor: an upper bound on
            numel / k for sparse compressors (LAGS: c_u).
        allow: what ``auto`` may use, of the names of ``METHODS``, whatever is known of
            its accuracy; None: what ``accuracy`` allows and can be priced.
        accuracy: what ``auto`` may lose, by what was measured (see ``evidence``).
        tolerance: how much slower than the fastest plan ``optimal`` may be in order to
            send fewer messages, ``lags`` to compress less, and ``auto`` for both, as a
            share of the iteration time.
        min_gain: how much less time than the best dense plan a lossy one of ``auto``
            must take, as a share. Predictions are not much surer: for less, gradients
            are sent whole.
        momentum_correction: a plan that leaves elements out has the optimizer's
            momentum applied before compression.
        literal: ``lags`` follows Eq. 19 of its paper as printed.
        local_steps: the ranks make so many steps alone, then average how far they have
            come; None: they average every gradient.
    """

    world_size: int | None = None
    algorithm: str | None = None
    link_bytes_per_s: float | None = None
    compressor: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    dense_layers: Sequence[str] | None = None
    caps_nbytes: tuple[int, ...] = DDP_CAPS
    max_ratio: float = MAX_RATIO
    allow: tuple[str, ...] | None = None
    accuracy: Accuracy = "noise"
    tolerance: float = TOLERANCE
    min_gain: float = MIN_GAIN
    literal: bool = False
    momentum_correction: bool = False
    local_steps: LocalSteps | None = None

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    @classmethod
    def of(cls, plan: Plan) -> Settings:
        """Return what ``plan`` was solved with.

        Raises:
            InputError: the plan says something that cannot be asked for.
        """
        with refused_as("what the plan was asked for"):
            return _as_json().validate_python(plan.asked)

    def asked(self) -> dict[str, JsonValue]:
        """Return what differs from the defaults, as a plan keeps it."""
        written: dict[str, JsonValue] = _as_json().dump_python(
            self, mode="json", exclude_defaults=True
        )
        return written

    def __post_init__(self) -> None:
        """Refuse what means nothing.

        Raises:
            InputError: a world size or ``max_ratio`` out of range, a link speed not
                above 0, ``tolerance`` below 0, ``min_gain`` not a share, options of no
                compressor, or ``allow`` names none, or a lossy one beside ``accuracy``
                ``none``.
        """
        if self.world_size is not None and not 1 <= self.world_size <= MAX_RANKS:
            raise InputError(
                f"world size {self.world_size} is not from 1 to {MAX_RANKS}: give the "
                "number of ranks"
            )
        if self.link_bytes_per_s is not None and not self.link_bytes_per_s > 0:
            raise InputError(
                f"link speed {self.link_bytes_per_s} is not above 0: give bytes/s"
            )
        if self.options and self.compressor is None:
            raise InputError(
                f"options {', '.join(self.options)} are given without a compressor: "
                "name it (--compressor)"
            )
        lossy = [name for name in self.allow or () if not method(name)[0].lossless]
        if lossy and self.accuracy == "none":
            raise InputError(
                f"accuracy none stays dense, and {', '.join(lossy)} may lose "
                "something: leave one of the two out (--accuracy, --allow)"
            )
        if not 1 <= self.max_ratio <= LARGEST_RATIO:
            raise InputError(
                f"max ratio {self.max_ratio} is not from 1, which keeps everything, to "
                f"{LARGEST_RATIO:g}"
            )
        if not self.tolerance >= 0:
            raise InputError(f"tolerance {self.tolerance} is below 0: give a share")
        if not 0 <= self.min_gain < 1:
            raise InputError(
                f"min gain {self.min_gain} is not from 0 to below 1: give a share"
            )
        if self.local_steps is not None and self.momentum_correction:
            raise InputError(
                "with local steps every rank's own optimizer applies momentum: leave "
                "momentum correction out"
            )

    @property
    def round_steps(self) -> int:
        """How many steps the ranks make to an exchange."""
        return steps_of(self.local_steps)

    def label(self, solver: str) -> str:
        """Return what the plan of ``solver`` is called (:func:`~.plan.labelled`)."""
        return labelled(solver, self.compressor, self.local_steps)

    def ratio_limit(self, method: str) -> float:
        """Return how much ``method`` may leave out where nobody forces it; 1: no use.

        What was allowed by name may leave out ``max_ratio``, everything else no more
        than ``accuracy`` allows.
        """
        if self.allow is not None:
            return self.max_ratio if method in self.allow else 1.0
        return evidence.largest_ratio(method, self.accuracy, self.max_ratio)

    def may_leave_out(self, method: str) -> bool:
        """Return whether something may go by ``method`` where nobody forces it."""
        return not METHODS[method][0].lossless and self.ratio_limit(method) > 1

    def kinds(self) -> tuple[str, ...]:
        """Return what compressors a profile must know where nobody forces another."""
        used = (
            spec.kind
            for name, (spec, _) in METHODS.items()
            if spec.lossless or self.may_leave_out(name)
        )
        return tuple(dict.fromkeys(used))


@cache
def _as_json() -> TypeAdapter[Settings]:
    return TypeAdapter(Settings)


@dataclass(frozen=True)
class Run:
    """A maximal range of tensors that may share a bucket: one dtype, one option."""

    start: int
    stop: int
    option: Option


@dataclass(frozen=True, eq=False)
class Problem:
    """One model on one network. L tensors in the order in which they are sent.

    Attributes:
        compute: when gradients are ready.
        nbytes: [L] bytes of each gradient; of a sparse one those of an all-reduce that
            moves as much.
        dtypes: [L] their dtypes; a bucket has one, and a sparse gradient its own.
        layers: [L] the layer that each tensor belongs to.
        world_size: P.
        assigned: [L] how each tensor travels unless the solver decides.
        prices: what any compressor and collective cost here.
        settings: what the user asked for.
        given: the profile as it was given, in ready order.
    """

    compute: Compute
    nbytes: IntArray
    dtypes: tuple[str, ...]
    layers: tuple[str, ...]
    world_size: int
    assigned: tuple[Option, ...]
    prices: Prices
    settings: Settings
    given: Profile

    def __len__(self) -> int:
        """Return L."""
        return len(self.dtypes)

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The ranges within which buckets are chosen, in the order of sending."""

        def kind(index: int) -> tuple[str, int]:
            return self.dtypes[index], id(self.assigned[index])

        runs = [list(members) for _, members in groupby(range(len(self)), key=kind)]
        return tuple(Run(r[0], r[-1] + 1, self.assigned[r[0]]) for r in runs)

    @cached_property
    def layer_stops(self) -> IntArray:
        """[layers] index after each layer's last tensor: neighbours of the same one."""
        return np.cumsum([len(list(members)) for _, members in groupby(self.layers)])

    @cached_property
    def sendable_s(self) -> FloatArray:
        """[L] when an idle channel takes each gradient: it is ready and compressed.

        Compression occupies the compute stream, so that of all earlier tensors counts.
        It is a sum over tensors and hence the same however they are merged.
        """
        each = [np.diff(r.option.compress_s[r.start : r.stop + 1]) for r in self.runs]
        ready_s = self.compute.ready_s + self.compute.handoffs_s
        return ready_s + np.cumsum(np.concatenate(each))

    def sent_by(self, option: Option) -> Problem:
        """Return the problem with ``option`` where it is allowed, else dense."""
        dense = self.prices.dense
        chosen = (option if allowed else dense for allowed in option.allowed.tolist())
        return replace(self, assigned=tuple(chosen))

    @cached_property
    def dense(self) -> Problem:
        """The problem of sending everything as it is."""
        dense = self.prices.dense
        if all(option.compressor == dense.compressor for option in self.assigned):
            return self
        return replace(self, assigned=(dense,) * len(self))

    @cached_property
    def plain(self) -> Problem:
        """The problem of sending the gradients of every step as they are."""
        plain = replace(self.settings, compressor=None, options={}, local_steps=None)
        if plain == self.settings:
            return self.dense
        compute = Compute.of(self.prices.profile, self.world_size)
        return replace(self.dense, compute=compute, settings=plain)

    @property
    def extrapolated_from(self) -> int | None:
        """The measured number of ranks where this is another one."""
        measured = self.prices.network.world_size
        return None if self.world_size == measured else measured

    def solution(self, stops: Sequence[int] | IntArray) -> Solution:
        """Return the buckets that end at ``stops``, each tensor as assigned."""
        ends = np.asarray(stops, dtype=np.int64)
        return Solution(ends, tuple(self.assigned[stop - 1] for stop in ends.tolist()))

    def simulate(self, solution: Solution) -> Schedule:
        """Return the timeline of an iteration under ``solution``."""
        return simulate(self.compute, solution.stops, solution.times())


@dataclass(frozen=True, eq=False)
class Solution:
    """Buckets in launch order.

    Attributes:
        stops: [B] index after each bucket's last tensor, increasing, the last one L.
        options: [B] how each bucket travels.
    """

    stops: IntArray
    options: tuple[Option, ...]

    @property
    def starts(self) -> IntArray:
        """[B] index of each bucket's first tensor."""
        return np.concatenate([[0], self.stops[:-1]])

    def buckets(self) -> Iterator[tuple[int, int, Option]]:
        """Yield ``start, stop, option`` of each bucket."""
        yield from zip(
            self.starts.tolist(), self.stops.tolist(), self.options, strict=True
        )

    def times(self) -> BucketTimes:
        """Return what each bucket costs, one vectorised step per distinct option."""
        starts, stops = self.starts, self.stops
        rows = np.zeros((4, len(stops)))
        which = np.array([id(option) for option in self.options])
        for option in {id(option): option for option in self.options}.values():
            sent_so = which == id(option)
            a, b = starts[sent_so], stops[sent_so]
            rows[0, sent_so] = option.compress_s[b] - option.compress_s[a]
            rows[1:, sent_so] = option.phases_s(a, b)
        return BucketTimes(*rows)
