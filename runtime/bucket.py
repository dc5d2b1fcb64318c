"""One bucket of a plan at run time: collects gradients, exchanges, hands back means.

Gradients come on the threads of the training loop; :meth:`BucketExchange.exchange` and
:meth:`BucketExchange.write` run on the communication thread or, on the CPU, on the one
that waits for it. Nobody else touches a bucket while it is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence

import numpy as np
import torch
from torch import nn
from torch.utils.weak import TensorWeakRef

from comm_plan.collectives.registry import COLLECTIVES
from comm_plan.compressors import build
from comm_plan.compressors.base import RESIDUAL, Context, Slot
from comm_plan.compressors.momentum import Momentum
from comm_plan.plans import Bucket, Plan
from comm_plan.plans.compression import EQUAL_ON_ALL_RANKS, POWERS
from comm_plan.runtime.flat import flat, shaped
from comm_plan.runtime.momentum import MomentumOf
from comm_plan.runtime.state import Remembered
from comm_plan.runtime.status import Flagged
from comm_plan.transports.base import Transport

TOGETHER_NUMEL = 2**26
"""No more elements are copied to be taken together; of as many as this tensors are so
large that what is launched for each does not count."""


class BucketExchange:
    """The gradients of one bucket through each step.

    Args:
        planned: the bucket in the plan.
        parameters: its parameters, in order.
        context: the run.
        share: whether ``.grad`` may be a part of the bucket, which saves a copy.

    Attributes:
        compressor: what stands between the gradients and the wire.
        sent_nbytes: bytes that this rank handed to the transport in the last exchange.
    """

    def __init__(
        self,
        planned: Bucket,
        parameters: Sequence[nn.Parameter],
        context: Context,
        share: bool,
    ) -> None:
        self.planned = planned
        self.parameters = tuple(parameters)
        slots = [
            Slot(name, flat(parameter).numel(), tuple(parameter.shape))
            for name, parameter in zip(planned.tensors, parameters, strict=True)
        ]
        self.compressor = build(planned.compressor, planned.collective, slots, context)
        self.sent_nbytes = 0
        self._share = share
        self._views: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._rooms: dict[int, torch.Tensor] = {}
        self._kept: dict[int, torch.Tensor] = {}
        self._carried: dict[int, torch.Tensor] = {}
        self._before: dict[int, dict[str, torch.Tensor]] = {}
        self._applied: dict[int, tuple[TensorWeakRef, int]] = {}

    @property
    def dense_nbytes(self) -> int:
        """Size of the bucket's gradients."""
        return sum(p.numel() * p.element_size() for p in self.parameters)

    def begin(self, step: int, density_floor: float) -> None:
        """Tell the compressor which step it is in."""
        self.compressor.step = step
        self.compressor.density_floor = density_floor
        self._rooms.clear()
        self._kept.clear()

    def add(
        self, index: int, gradient: torch.Tensor, second_moment: torch.Tensor | None
    ) -> None:
        """Take the gradient of parameter ``index``: flat [numel], or sparse.

        Keep it, if the compressor takes those of the bucket together.
        """
        if index in self._carried:
            if gradient.is_sparse:
                gradient = flat(gradient.to_dense())
            carried = self._carried[index].to(gradient.device, gradient.dtype)
            gradient = gradient + carried
        if self.compressor.takes_together:
            self._kept[index] = gradient
        else:
            self.compressor.add(index, gradient, second_moment)

    def take_kept(self, admit: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
        """Give the compressor the gradients that were kept, which are all, if any.

        Args:
            admit: is given the name and the numbers of a gradient, or of all of them,
                end to end, and returns what the compressor may see.
        """
        if not self._kept:
            return
        names = self.planned.tensors
        gradients = [self._kept[index] for index in range(len(names))]
        if sum(gradient.numel() for gradient in gradients) <= TOGETHER_NUMEL:
            whole = torch.cat(gradients)  # memory may not suffice
            self._kept.clear()
            self.compressor.add_together(admit(f"{names[0]} to {names[-1]}", whole))
            return
        self._kept.clear()
        for index, (name, gradient) in enumerate(zip(names, gradients, strict=True)):
            self.compressor.add(index, admit(name, gradient))

    def give_up_kept(self) -> None:
        """Let NaN take the place of gradients that were kept, where it reaches all."""
        if self.compressor.carries_nonfinite:
            for index in self._kept:
                self.add_nothing(index)

    def add_zero(self, index: int) -> None:
        """Contribute zero for parameter ``index``, which got no gradient."""
        state = self.compressor.state
        self._before[index] = {name: of[index].clone() for name, of in state.items()}
        zero = self._filled(index, 0.0)
        self.add(index, zero, zero)

    def add_nothing(self, index: int) -> None:
        """Contribute what makes no mean, for a parameter whose gradient never comes.

        NaN where that reaches all ranks; else zero, and flags have to tell them.
        """
        if self.compressor.carries_nonfinite:
            self.add(index, self._filled(index, torch.nan), None)
        else:
            self.add_zero(index)

    def _filled(self, index: int, value: float) -> torch.Tensor:
        """Return a gradient of ``value`` for parameter ``index``.

        Where it is sparse: without rows, or, if the value is not 0, with the first one.
        """
        parameter = self.parameters[index].detach()
        if not self.compressor.takes_rows:
            return flat(torch.full_like(parameter, value))
        rows = torch.full_like(parameter[: int(value != 0)], value)
        numbers = torch.arange(len(rows), device=rows.device)
        return torch.sparse_coo_tensor(
            numbers[None], rows, parameter.shape, check_invariants=False
        )

    @property
    def carries_flags(self) -> bool:
        """Whether flags can be sent along."""
        return COLLECTIVES[self.planned.collective].carries_flags

    def exchange(
        self, transport: Transport, flags: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """Combine this rank's message with everyone's.

        Args:
            transport: the ranks.
            flags: int32 [n] to send along, if the bucket ``carries_flags``.

        Returns:
            The largest of each of the flags over the ranks, if there are any.
        """
        aggregate = COLLECTIVES[self.planned.collective].aggregate
        if flags is None:
            self.sent_nbytes = aggregate(transport, self.compressor)
            return None
        flagged = Flagged(self.compressor, flags)
        self.sent_nbytes = aggregate(transport, flagged) - flags.nbytes
        return flagged.highest

    def make_room(self, index: int) -> None:
        """Choose where the mean of parameter ``index`` will be written.

        In ``.grad`` if there is one, or in the bucket. On a thread that owns ``.grad``,
        once the gradient is added: nothing that runs while the bucket is under way asks
        a parameter for it. PyTorch's ``.grad`` must not be read in one thread and set
        in another, and the program may take away the gradients of a step whose backward
        failed.
        """
        if self.compressor.takes_rows:
            return
        parameter = self.parameters[index]
        room = parameter.grad
        if room is None or room.is_conj():
            room = torch.empty_like(parameter, memory_format=torch.contiguous_format)
        view = self.compressor.view(index) if self._share else None
        if view is not None and view.dtype == room.dtype and room.is_contiguous():
            room = self._shaped_view(index, view)
        self._rooms[index] = room

    def write(self, index: int) -> None:
        """Write the mean over the ranks of parameter ``index`` into its room."""
        if self.compressor.takes_rows:
            self._rooms[index] = self.compressor.sparse_mean(index).clone()
            return
        room = self._rooms[index]
        if room.is_contiguous():
            self.compressor.write(index, flat(room))
        else:
            mean = flat(torch.empty_like(room))
            self.compressor.write(index, mean)
            room.copy_(shaped(mean, room))

    def write_all(self, indices: Sequence[int]) -> None:
        """Write those means; where they lie ready, all at once."""
        means = self.compressor.means
        rooms, ready = [], []
        for index in indices:
            if not means or not self._rooms[index].is_contiguous():
                self.write(index)
                continue
            room = flat(self._rooms[index])
            if room.data_ptr() != means[index].data_ptr():
                rooms.append(room)
                ready.append(means[index])
        if rooms:
            torch._foreach_copy_(rooms, ready)

    def hand_out(self, index: int) -> None:
        """Let ``.grad`` of parameter ``index`` be its room, if it has one by now."""
        room, parameter = self._rooms.get(index), self.parameters[index]
        if room is not None and parameter.grad is not room:
            parameter.grad = room

    def hand_out_all(self) -> None:
        """Let every ``.grad`` be the mean that was written."""
        for index in self._rooms:
            self.hand_out(index)

    def leave_rooms(self) -> None:
        """Keep none of the means that are handed out before the step is over.

        On CUDA they were made on backward's stream, and are written on the current one:
        they are not used anew before that is done.
        """
        for room in self._rooms.values():
            if room.is_cuda and not room.is_sparse:
                room.record_stream(torch.cuda.current_stream(room.device))
        self._rooms.clear()

    def _shaped_view(self, index: int, view: torch.Tensor) -> torch.Tensor:
        """Return ``view``, a part of the bucket, in the shape of the parameter."""
        known = self._views.get(index)
        if known is None or known[0] is not view:
            known = self._views[index] = view, shaped(view, self.parameters[index])
        return known[1]

    @property
    def _remembers(self) -> bool:
        return bool(self.compressor.state or self._carried)

    def note_applied(self, updated: Container[nn.Parameter]) -> None:
        """Note that an optimizer has taken the gradients of those ``updated``."""
        if not self._remembers:
            return
        for index, parameter in enumerate(self.parameters):
            gradient = parameter.grad
            if gradient is not None and parameter in updated:
                self._applied[index] = TensorWeakRef(gradient), gradient._version

    def has_left(self, index: int) -> bool:
        """Return whether ``.grad`` of parameter ``index`` is to go with this step.

        An earlier backward left it there. Not where something is remembered, and it is
        zero, or what an optimizer has applied already: sent again, a part of it would
        wait for later.
        """
        gradient = self.parameters[index].grad
        if gradient is None or not self._remembers:
            return gradient is not None
        applied, version = self._applied.get(index, (None, 0))
        is_applied = applied is not None and applied() is gradient
        if is_applied and gradient._version == version:
            return False
        return bool(_values(gradient).any())

    @property
    def has_carried(self) -> bool:
        """Whether anything that another plan has left goes with the next gradients."""
        return bool(self._carried)

    def settle(self, unused: Collection[int] = ()) -> None:
        """Forget what was carried over from another plan: it has been applied.

        Args:
            unused: parameters that no rank used; all ranks remember of them what they
                did before, as if nothing had been sent.
        """
        for index in unused:
            for quantity, before in self._before[index].items():
                self.compressor.state[quantity][index].copy_(before)
        self._before.clear()
        self._carried = {i: of for i, of in self._carried.items() if i in unused}

    def drop_means(self) -> None:
        """Leave no parameter a gradient."""
        for parameter in self.parameters:
            parameter.grad = None

    def spoil_means(self, unused: Collection[int], *, missing_too: bool) -> None:
        """Fill every ``.grad`` with NaN.

        Args:
            unused: parameters that keep theirs.
            missing_too: also make those of none.
        """
        for index, parameter in enumerate(self.parameters):
            if index in unused:
                continue
            if parameter.grad is not None:
                _values(parameter.grad).fill_(torch.nan)
            elif missing_too:
                spoilt = self._filled(index, torch.nan)
                sparse = spoilt.is_sparse
                parameter.grad = spoilt if sparse else shaped(spoilt, parameter)

    def state(self) -> Remembered:
        """Return what is remembered."""
        states: Remembered = {}
        for index, slot in enumerate(self.compressor.slots):
            remembered = {k: v[index] for k, v in self.compressor.state.items()}
            if index in self._carried:
                remembered[RESIDUAL] = self._carried[index]
            if remembered:
                states[slot.name] = remembered
        return states

    def load_state(self, states: Remembered) -> None:
        """Remember this and nothing else, also where it is of another plan.

        A residual that this bucket's compressor has no place for is not lost: it is
        added to the next gradient. What is not given is zero, but for factors: without
        any, or with those of another rank, it goes on from its own.
        """
        self._carried.clear()
        for index, slot in enumerate(self.compressor.slots):
            given = states.get(slot.name, {})
            for quantity, tensors in self.compressor.state.items():
                known = given.get(quantity)
                if known is not None and known.shape == tensors[index].shape:
                    tensors[index].copy_(known)
                elif quantity not in EQUAL_ON_ALL_RANKS:
                    tensors[index].zero_()
            if RESIDUAL in given and RESIDUAL not in self.compressor.state:
                self._carried[index] = given[RESIDUAL].clone()

    def rescale(self, factor: float) -> None:
        """Multiply the residuals by ``factor``: the loss scale has changed."""
        for carried in self._carried.values():
            carried.mul_(factor)
        for quantity, power in POWERS.items():
            for tensor in self.compressor.state.get(quantity, ()):
                tensor.mul_(factor**power)


def build_buckets(
    plan: Plan,
    parameters: Mapping[str, nn.Parameter],
    transport: Transport,
    seed: int,
    share: bool,
    momentum_of: MomentumOf | None,
) -> tuple[BucketExchange, ...]:
    """Return the buckets of ``plan``, in launch order.

    Args:
        plan: the plan.
        parameters: those of the model, by name.
        transport: the ranks; each draws its own random numbers.
        seed: equal on all ranks.
        share: as for :class:`BucketExchange`.
        momentum_of: what compressors apply to the gradients of a parameter; None:
            the optimizer does.
    """

    def of_tensor(name: str) -> Momentum:
        assert momentum_of is not None
        return momentum_of(parameters[name])

    buckets = []
    (own_seed,) = np.random.SeedSequence([seed, transport.rank]).generate_state(1)
    for planned in plan.buckets:
        context = Context(
            world_size=transport.world_size,
            rank=transport.rank,
            device=parameters[planned.tensors[0]].device,
            seed=int(own_seed),
            momentum_of=of_tensor if momentum_of else None,
        )
        members = [parameters[name] for name in planned.tensors]
        buckets.append(BucketExchange(planned, members, context, share))
    return tuple(buckets)


def _values(gradient: torch.Tensor) -> torch.Tensor:
    """Return the numbers of ``gradient``, shared: all, or the rows that are there."""
    values = gradient._values() if gradient.is_sparse else gradient
    return torch.view_as_real(values) if values.is_complex() else values
