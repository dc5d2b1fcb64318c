"""One step: from the first gradient to the moment at which every ``.grad`` is a mean.

A :class:`Step` is made for each step and thrown away after it: there is no state to be
reset and none to be forgotten.

1. Gradients arrive in any order (:meth:`Step.add`, on the thread of backward). Once a
   bucket is complete and all earlier ones are launched, it is launched: handed to the
   communication thread, which runs exchanges in this order, the plan's, on every rank,
   and writes the means. Only the thread of backward makes them ``.grad``.
2. After backward (:meth:`Step.finish`) the buckets that are not complete get zeros and
   are launched too. With the last one, or behind it, the ranks share their flags: who
   had inf or NaN, who used which parameter. Then this thread waits for all of it, and
   on the CPU runs what the other has not begun: the last bucket waits for no wake-up.
3. The means are taken (:meth:`Step.settle`), or, if anyone had inf or NaN, refused on
   all ranks (:meth:`Step.refuse`).

A rank whose backward fails gives its step up (:meth:`Step.give_up`): it takes part in
what is left of it, so that no rank waits for another, and all of them refuse the step.
They learn of it by the flags, or, where steps with inf and NaN are skipped, by NaN in
its place. Where neither is so, or it is too late, they cannot be told
(:meth:`Step.objection`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, Protocol

import torch
from torch import nn

from comm_plan.errors import InputError, RunError
from comm_plan.runtime.bucket import BucketExchange
from comm_plan.runtime.communication import CommunicationThread, Pending
from comm_plan.runtime.flat import flat
from comm_plan.runtime.guard import Guard
from comm_plan.runtime.hooks import ParameterPlace
from comm_plan.runtime.timing import Moments
from comm_plan.transports.base import Transport

OnNonFinite = Literal["stop", "skip", "propagate"]
OnReduced = Callable[[tuple[nn.Parameter, ...]], None]


class SecondMoments(Protocol):
    """Gives the per-sample second moments that VGC needs."""

    @property
    def of_parts(self) -> bool:
        """Whether each batch is cut, and a step has a backward for every part."""
        ...

    def of(self, parameter: nn.Parameter) -> torch.Tensor:
        """Return ``sum_z (g_z / |B|)^2``, shaped like ``parameter``."""
        ...

    def knows(self, parameter: nn.Parameter) -> bool:
        """Return whether there were backward passes since :meth:`of`."""
        ...

    def reset(self) -> None:
        """Forget the backward passes so far: their gradients are given up."""
        ...

    def remove(self) -> None:
        """Take the hooks off the model."""
        ...


@dataclass(frozen=True)
class Setup:
    """What all steps of an engine share.

    Attributes:
        buckets: in launch order.
        thread: runs the exchanges.
        channel: the ranks, for the exchanges only.
        on_nonfinite: see :class:`~comm_plan.runtime.engine.Engine`.
        find_unused_parameters: see there.
        second_moments: where VGC gets them from.
        scaled: whether a ``GradScaler`` looks at the means before the optimizer does.
        on_reduced: is given the parameters of each bucket, on the communication thread,
            once their means are in ``.grad``; None: nothing is.
    """

    buckets: tuple[BucketExchange, ...]
    thread: CommunicationThread
    channel: Transport
    on_nonfinite: OnNonFinite
    find_unused_parameters: bool
    second_moments: SecondMoments | None
    scaled: bool = False
    on_reduced: OnReduced | None = None

    @property
    def cuts_batches(self) -> bool:
        """Whether second moments come from parts of each batch, one by one."""
        return self.second_moments is not None and self.second_moments.of_parts

    @cached_property
    def is_guarded(self) -> bool:
        """Whether a bucket remembers gradients, and so must not see inf or NaN."""
        return any(not bucket.compressor.carries_nonfinite for bucket in self.buckets)

    @property
    def has_flags(self) -> bool:
        """Whether there is anything that all ranks must know of one."""
        return self.find_unused_parameters or self.is_guarded


@dataclass(frozen=True)
class Refusal:
    """Why no rank may use the means of a step.

    Attributes:
        culprit: what was wrong, in words.
        backward_failed: on some rank; else it was inf or NaN.
    """

    culprit: str
    backward_failed: bool = False


class Step:
    """The state of one step.

    Args:
        setup: what all steps share.
        number: of the step, from 0.
        density_floor: sparse methods send at least this share of each tensor.

    Attributes:
        graph_task: the backward whose end is awaited; None while there is none.
        received: whether a gradient has arrived.
        forward_pending: whether a forward has begun that will have to be finished.
        moments: when what happened.
    """

    def __init__(self, setup: Setup, number: int, density_floor: float) -> None:
        self.graph_task: int | None = None
        self.received = False
        self.forward_pending = False
        self._setup = setup
        self._guard = Guard()
        self._given_up = False
        self._awaited = [len(bucket.parameters) for bucket in setup.buckets]
        self._used = [[False] * awaited for awaited in self._awaited]
        self._unused: list[list[int]] = [[] for _ in setup.buckets]  # by any rank
        self._launched: list[Pending[torch.Tensor | None]] = []
        self._last: tuple[BucketExchange, int] | None = None
        self._own_flags: torch.Tensor | None = None  # kept: a stream may read them
        self.moments = Moments(setup.channel.device, len(setup.buckets))
        for bucket in setup.buckets:
            bucket.begin(number, density_floor)

    @property
    def has_begun(self) -> bool:
        """Whether anything of it has happened on this rank."""
        return self.forward_pending or self.received or self.graph_task is not None

    # During backward

    def add(
        self, place: ParameterPlace, parameter: nn.Parameter, is_left: bool = False
    ) -> None:
        """Take the gradient of ``parameter``; launch what is complete with it.

        Args:
            place: where it is in the plan.
            parameter: its ``.grad`` is complete.
            is_left: this backward did not touch it.

        Raises:
            InputError: the gradient is sparse, but not in the plan.
            RunError: it is the second one of this step, or a hook took it away.
        """
        gradient = parameter.grad
        if gradient is None:
            raise RunError(
                f"the gradient of parameter {place.name} is gone before it is "
                "averaged: a hook that was registered before parallelize has set .grad "
                "to None, or returned something: update after backward, or in "
                "engine.on_reduced"
            )
        bucket, used = self._setup.buckets[place.bucket], self._used[place.bucket]
        if gradient.is_sparse and not bucket.compressor.takes_rows:
            raise InputError(
                f"parameter {place.name} has a sparse gradient, of which the plan does "
                "not know: profile the model again and solve, or build the layer with "
                "sparse=False"
            )
        if used[place.index]:
            raise RunError(
                f"parameter {place.name} got a second gradient before all parameters "
                "had their first: call backward once a step, or all but the last time "
                "in engine.no_sync(); with re-entrant checkpointing of layers that "
                "share parameters, checkpoint with use_reentrant=False"
            )
        self._hand_out_last()
        self._last = bucket, place.index
        self.received = True
        whole = gradient.detach() if gradient.is_sparse else flat(gradient)
        self._admit(
            bucket, place, whole, self._second_moment(bucket, parameter, is_left)
        )
        used[place.index] = True
        self._awaited[place.bucket] -= 1
        if not self._awaited[place.bucket]:
            self._launch_complete()

    def _hand_out_last(self) -> None:
        """Free the gradient before this one, which all hooks have seen by now.

        With ``on_reduced`` means are handed out on the communication thread instead.
        """
        if self._last is not None and self._setup.on_reduced is None:
            bucket, index = self._last
            bucket.hand_out(index)

    def _admit(
        self,
        bucket: BucketExchange,
        place: ParameterPlace,
        gradient: torch.Tensor,
        second_moment: torch.Tensor | None,
    ) -> None:
        """Hand ``gradient``, flat or sparse, to ``bucket``; keep inf and NaN out."""
        compressor = bucket.compressor
        if not (compressor.carries_nonfinite or compressor.takes_together):
            gradient, second_moment = self._guard.admit(
                place.name, gradient, second_moment
            )
        bucket.add(place.index, gradient, second_moment)
        bucket.make_room(place.index)

    def _admit_kept(self, bucket: BucketExchange) -> None:
        """Let the compressor take what ``bucket`` has kept, without inf and NaN."""

        def admit(name: str, gradient: torch.Tensor) -> torch.Tensor:
            if bucket.compressor.carries_nonfinite:
                return gradient
            admitted, _ = self._guard.admit(name, gradient, None)
            return admitted

        bucket.take_kept(admit)

    def _second_moment(
        self, bucket: BucketExchange, parameter: nn.Parameter, is_left: bool
    ) -> torch.Tensor | None:
        """Return that of a gradient, flat; None: nobody needs it."""
        if not bucket.compressor.needs_second_moments:
            return None
        moments = self._setup.second_moments
        assert moments is not None
        if is_left and not moments.knows(parameter):
            return torch.zeros_like(parameter).flatten()
        return moments.of(parameter).detach().flatten()

    def _launch_complete(self) -> None:
        buckets = self._setup.buckets
        while (number := len(self._launched)) < len(buckets):
            if self._awaited[number]:
                return
            self._launch(buckets[number])

    @property
    def _unlaunched(self) -> tuple[BucketExchange, ...]:
        return self._setup.buckets[len(self._launched) :]

    def _launch(self, bucket: BucketExchange) -> None:
        self._admit_kept(bucket)
        number = len(self._launched)
        self.moments.ready[number] = self.moments.now()
        is_last = number + 1 == len(self._setup.buckets)
        if is_last and bucket.carries_flags:
            self._own_flags = self._flags()
        exchange = partial(self._exchange, bucket, number, self._own_flags)
        self._hand_over(exchange, is_awaited=is_last)

    def _hand_over(
        self, job: Callable[[], torch.Tensor | None], *, is_awaited: bool
    ) -> None:
        """Hand ``job`` to the communication thread; ``is_awaited``: nothing follows."""
        wake = self._idle or not is_awaited
        self._launched.append(self._setup.thread.submit(job, wake=wake))

    def _exchange(
        self, bucket: BucketExchange, number: int, flags: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Exchange a bucket, write the means of what this rank used."""
        self.moments.start[number] = self.moments.now()
        highest = bucket.exchange(self._setup.channel, flags)
        bucket.write_all([i for i, used in enumerate(self._used[number]) if used])
        self.moments.finish[number] = self.moments.now()
        if self._setup.on_reduced is not None:
            bucket.hand_out_all()  # which is the callback's here
            bucket.leave_rooms()  # it may free them
            self._setup.on_reduced(bucket.parameters)
        return highest

    # The end

    @property
    def is_complete(self) -> bool:
        """Whether every parameter got its gradient."""
        return not any(self._awaited)

    def missing(self) -> list[str]:
        """Return the names of the parameters that got no gradient."""
        return [name for name, _, _, used in self._parameters() if not used]

    def finish(self) -> Refusal | None:
        """Launch what is left and wait for everything.

        Returns:
            Why the step is refused; None: it counts.
        """
        self.moments.backward_end = self.moments.now()
        self._launch_rest()
        finite = self._means_are_finite()
        flags = self._highest_flags()
        if self._setup.find_unused_parameters:
            self._compare_use(flags[1:], write=True)
        for bucket in self._setup.buckets:
            bucket.hand_out_all()
        refusal = self._refusal(flags[0])
        if refusal is None and not finite:
            return Refusal("some rank had inf or NaN gradients")
        return refusal

    def take_left(self) -> None:
        """Take the gradients that earlier backwards left, and this one did not touch.

        Another rank may add to its own, of which the mean is taken. What is a mean
        already has passed on its second moment.
        """
        for number, bucket in enumerate(self._setup.buckets):
            each = zip(bucket.planned.tensors, bucket.parameters, strict=True)
            for index, (name, parameter) in enumerate(each):
                if not self._used[number][index] and bucket.has_left(index):
                    place = ParameterPlace(name, number, index)
                    self.add(place, parameter, is_left=True)

    def objection(self) -> str | None:
        """Return why the ranks cannot be told to refuse the step; None: they can."""
        setup = self._setup
        if setup.channel.world_size == 1:
            return None
        if not setup.has_flags and setup.on_nonfinite != "skip":
            return "a dense plan does not tell them: pass on_nonfinite='skip'"
        told_by_last = setup.buckets[-1].carries_flags or not setup.has_flags
        has_told = len(self._launched) > len(setup.buckets)
        if has_told or (told_by_last and not self._unlaunched):
            return "all of its gradients are sent: go on from a checkpoint"
        return None

    def give_up(self) -> Refusal:
        """Take part in what is left of the step, and let all ranks refuse it.

        Returns:
            Why it is refused, by this rank at least.
        """
        self._given_up = True
        self._launch_rest()
        flags = self._highest_flags()
        if self._setup.find_unused_parameters:
            self._compare_use(flags[1:], write=False)
        return self._refusal(flags[0]) or _failed(self._setup.channel.rank)

    def wait(self) -> None:
        """Wait for the exchanges that are under way."""
        for pending in self._launched:
            pending.wait(idle=self._idle)

    @property
    def _idle(self) -> bool:
        """Whether exchanges are left to their thread: it tells users of the means."""
        return self._setup.on_reduced is not None

    def settle(self) -> None:
        """Take the means as they are."""
        for bucket, unused in zip(self._setup.buckets, self._unused, strict=True):
            bucket.settle(unused)

    def refuse(self, refusal: Refusal, late: bool = False) -> str:
        """Keep states as if nothing had been sent; replace the means.

        By nothing where a backward failed; else as configured. A ``GradScaler`` has to
        find NaN instead, as it wants to see gradients. Second moments of gradients that
        were not sent are forgotten.

        Args:
            refusal: why.
            late: no scaler will look at these means: it has, or another backward comes
                first.

        Returns:
            Why, in words, with names of this rank's gradients.
        """
        if self._setup.second_moments is not None:
            self._setup.second_moments.reset()
        skip = refusal.backward_failed or self._setup.on_nonfinite == "skip"
        if self._setup.scaled:
            skip = late
        for bucket, unused in zip(self._setup.buckets, self._unspoilt(), strict=True):
            bucket.compressor.undo()
            if skip:
                bucket.drop_means()
            else:
                bucket.spoil_means(unused, missing_too=self._setup.scaled)
        names = self._guard.names
        where = f"; this rank in {', '.join(names[:3])}" if names else ""
        return f"{refusal.culprit}{where}"

    def _unspoilt(self) -> list[list[int]]:
        """Return which parameters of each bucket a refusal leaves alone.

        Another optimizer may have those that no rank used, and a loop clear gradients
        after their step: NaN would wait there, and refuse the step after this one. If
        no rank came to use any, all of them tell the scaler.
        """
        if sum(map(len, self._unused)) < sum(map(len, self._used)):
            return self._unused
        return [[] for _ in self._unused]

    def _launch_rest(self) -> None:
        """Launch what is left, and share the flags."""
        first = len(self._launched)
        rest = zip(self._unlaunched, self._used[first:], strict=True)
        for bucket, used_flags in rest:
            if self._given_up:
                bucket.give_up_kept()
            add = bucket.add_nothing if self._given_up else bucket.add_zero
            for index, used in enumerate(used_flags):
                if not used:
                    add(index)
            self._launch(bucket)
        self._exchange_flags()

    def _means_are_finite(self) -> bool:
        """Look for inf and NaN in each bucket while later ones are under way.

        Sums of dense buckets are the same on all ranks, so this needs no communication;
        with ``propagate`` they are left to the user's own check, unless something has
        to be taken back that was sent with them.
        """
        buckets = self._setup.buckets
        if self._setup.on_nonfinite == "propagate" and not (
            self._setup.is_guarded or any(bucket.has_carried for bucket in buckets)
        ):
            return True
        exchanges = self._launched[: len(buckets)]  # behind them the flags may travel
        for bucket, pending in zip(buckets, exchanges, strict=True):
            pending.wait(idle=self._idle)
            if not bucket.compressor.is_finite():
                return False
        return True

    def _flags(self) -> torch.Tensor | None:
        """Return what all ranks must know of this one; None: nothing.

        Whether it saw a gradient that was not finite (its rank plus one; 0: no) or gave
        the step up (the same and the world size), then for every parameter whether it
        used it.
        """
        if not self._setup.has_flags:
            return None
        channel = self._setup.channel
        flags = self._guard.flag(channel.rank, channel.device)
        if self._given_up:
            flags.fill_(channel.rank + 1 + channel.world_size)
        if self._setup.find_unused_parameters:
            used = [used for _, _, _, used in self._parameters()]
            told = torch.tensor(
                used, dtype=torch.int32, device="cpu", pin_memory=flags.is_cuda
            )
            flags = torch.cat([flags, told.to(flags.device, non_blocking=True)])
        return flags

    def _exchange_flags(self) -> None:
        """Share the flags behind the last bucket, unless that takes them along."""
        if self._setup.buckets[-1].carries_flags:
            return
        flags = self._own_flags = self._flags()
        if flags is not None:
            self._hand_over(
                partial(_largest_of, flags, self._setup.channel), is_awaited=True
            )

    def _highest_flags(self) -> list[int]:
        """Wait for everything; return the largest of each flag over the ranks."""
        self.wait()
        highest = self._launched[-1].wait()
        return [0] if highest is None else highest.tolist()

    def _compare_use(self, used_by_any: list[int], *, write: bool) -> None:
        """Note what no rank used; ``write`` the means of what only others used."""
        parameters = zip(self._parameters(), used_by_any, strict=True)
        for (_, number, index, used), by_any in parameters:
            if not by_any:
                self._unused[number].append(index)
            elif write and not used:
                bucket = self._setup.buckets[number]
                bucket.make_room(index)
                bucket.write(index)

    def _refusal(self, flag: int) -> Refusal | None:
        """Return why some rank wants this step to be refused; None: none does."""
        ranks = self._setup.channel.world_size
        if flag > ranks:
            return _failed(flag - 1 - ranks)
        if flag:
            return Refusal(f"rank {flag - 1} had inf or NaN gradients")
        return None

    def _parameters(self) -> Iterator[tuple[str, int, int, bool]]:
        """Yield, in plan order, name, bucket, index in it, and whether it was used."""
        buckets = zip(self._setup.buckets, self._used, strict=True)
        for number, (bucket, used_flags) in enumerate(buckets):
            flags = zip(bucket.planned.tensors, used_flags, strict=True)
            for index, (name, used) in enumerate(flags):
                yield name, number, index, used


def _failed(rank: int) -> Refusal:
    return Refusal(f"the backward of rank {rank} failed", backward_failed=True)


def _largest_of(flags: torch.Tensor, channel: Transport) -> torch.Tensor:
    channel.all_reduce(flags, "max")
    return flags
