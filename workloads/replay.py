"""Recorded computation, real communication: a model made from a profile.

Its parameters have the names, shapes and dtypes of the profile, so that it has the
profile's fingerprint; its forward pass, its backward pass and its optimizer sleep the
recorded times. The gradient of each tensor appears at its ``ready_s``; it is random,
another one for every batch of every rank, and sparse where the profile saw rows, with
as many. Whatever trains a module can train it, PyTorch's DistributedDataParallel too
(if no gradient is sparse, which it expects of embeddings only), so a cluster can be
measured under a plan with no accelerator and no data.

How: the forward pass threads a scalar through one autograd function per tensor, the
last ready first. Backward visits them in ready order; each waits until its deadline and
hands its gradient to the autograd engine, which runs the tensor's hooks at once.

Deadlines count from the start of the pass, so the lateness of a sleep (some 60 us) does
not add up. Sleeping holds no lock: communication threads go on. While hooks run, the
clock of the recorded computation stands still: on a compute stream, what they do
(copies, compression) delays the rest of backward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from comm_plan.errors import WorkloadError
from comm_plan.plans import Profile
from comm_plan.workloads.base import Workload
from comm_plan.workloads.data import RANDOM_BATCHES, device_of, random_stream

POOL_NUMEL = 2**20
"""Random numbers that a gradient is copied from, over and over, in one step."""

SHIFT, SHIFTS = 4099, 2**16
"""Each batch begins so many numbers further on, modulo so many. Of one gradient in
every step what compressors keep would grow as that of no training does."""

DISPATCH_S = 50e-6
"""What autograd itself may take between two tensors; longer gaps are hooks at work."""


class _Clock:
    """Sleeps until moments on a time line that can be stopped."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._start_s = self._left_s = time.perf_counter()

    def leave(self) -> None:
        """Say that others run from now on."""
        self._left_s = time.perf_counter()

    def enter(self) -> None:
        """Take what the others needed since :meth:`leave` out of the time line."""
        away_s = time.perf_counter() - self._left_s
        self._start_s += max(0.0, away_s - DISPATCH_S)

    def sleep_until(self, moment_s: float) -> None:
        """Sleep until ``moment_s`` after the start, or return if that is past."""
        remaining_s = self._start_s + moment_s - time.perf_counter()
        if remaining_s > 0:
            time.sleep(remaining_s)


class _Gradient:
    """Makes one tensor's gradient quickly, in memory that is used again.

    Autograd keeps the tensor that backward returns as ``parameter.grad``. If that is
    still there at the next backward, autograd will add to it: then this gradient needs
    memory of its own.

    Args:
        parameter: whose gradient it is.
        rows: the gradient is sparse, and has the first so many; None: it is dense.
    """

    def __init__(self, parameter: nn.Parameter, rows: int | None) -> None:
        self._parameter = parameter
        self._rows = rows
        self._memory: torch.Tensor | None = None

    def make(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return a gradient of ``numbers``, over and over, contiguous if dense."""
        parameter, rows = self._parameter, self._rows
        if rows is None:
            return _filled(self._free_memory(), numbers)
        values = parameter.new_empty((rows, *parameter.shape[1:]))
        return torch.sparse_coo_tensor(
            torch.arange(rows, device=parameter.device)[None],
            _filled(values, numbers),
            parameter.shape,
            check_invariants=False,
        )

    def _free_memory(self) -> torch.Tensor:
        parameter, memory = self._parameter, self._memory
        if parameter.grad is not None:
            return torch.empty_like(parameter)
        if memory is None or memory.device != parameter.device:
            memory = self._memory = torch.empty_like(parameter)
        return memory.detach()  # autograd keeps only a tensor that nobody else holds


def _filled(memory: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Return ``memory``, which now holds ``numbers``, over and over."""
    for chunk in memory.view(-1).split(POOL_NUMEL):
        chunk.copy_(numbers[: chunk.numel()])
    return memory


class _Begin(torch.autograd.Function):
    """The last step of forward, so the first of backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, clock: _Clock) -> torch.Tensor:
        ctx.clock = clock
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.clock.start()
        return grads[0], None


class _Ready(torch.autograd.Function):
    """One tensor: its gradient exists once the clock shows ``ready_s``."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        parameter: torch.Tensor,
        make: Callable[[], torch.Tensor],
        clock: _Clock,
        ready_s: float,
    ) -> torch.Tensor:
        ctx.make, ctx.clock, ctx.ready_s = make, clock, ready_s
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.clock.enter()
        gradient = ctx.make()
        ctx.clock.sleep_until(ctx.ready_s)
        ctx.clock.leave()
        return grads[0], gradient, None, None, None


class _End(torch.autograd.Function):
    """The first step of forward; in backward what follows the last gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, clock: _Clock, backward_s: float
    ) -> torch.Tensor:
        ctx.clock, ctx.backward_s = clock, backward_s
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.clock.enter()
        ctx.clock.sleep_until(ctx.backward_s)
        return None, None, None


begin: Callable[..., torch.Tensor] = _Begin.apply
ready: Callable[..., torch.Tensor] = _Ready.apply
end: Callable[..., torch.Tensor] = _End.apply


class Replay(nn.Module):
    """The model of a profile; its output is a scalar to call ``backward`` on.

    Raises:
        WorkloadError: the profile's tensor names cannot be those of one module.
    """

    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self._profile = profile
        self._clock = _Clock()
        self._pools: dict[torch.device, torch.Tensor] = {}
        self._gradients: list[tuple[nn.Parameter, _Gradient, float]] = []
        for tensor in reversed(profile.tensors):  # modules register in forward order
            dtype = getattr(torch, tensor.dtype)
            parameter = nn.Parameter(torch.zeros(tensor.shape, dtype=dtype))
            _register(self, tensor.name, parameter)
            gradient = _Gradient(parameter, tensor.rows)
            self._gradients.append((parameter, gradient, tensor.ready_s))

    def forward(self, batch: int = 0) -> torch.Tensor:
        """Sleep ``forward_s`` and return a zero that carries the recorded backward.

        Args:
            batch: its number, which decides what the gradients are.
        """
        clock, profile = self._clock, self._profile
        clock.start()
        device = device_of(self)
        numbers = self._pool(device)[batch * SHIFT % SHIFTS :]
        x = torch.zeros((), device=device, requires_grad=True)
        x = end(x, clock, profile.backward_s)
        for parameter, gradient, ready_s in self._gradients:
            make = partial(gradient.make, numbers)
            x = ready(x, parameter, make, clock, ready_s)
        clock.sleep_until(profile.forward_s)
        return begin(x, clock)

    def _pool(self, device: torch.device) -> torch.Tensor:
        if device not in self._pools:
            largest = max(tensor.numel for tensor in self._profile.tensors)
            size = min(POOL_NUMEL, largest) + SHIFTS
            numbers = torch.randn(size, generator=random_stream(0, 0))
            self._pools[device] = numbers.to(device)
        return self._pools[device]


def _register(root: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Give ``root`` a parameter whose dotted name is ``name``."""
    module = root
    *path, own = name.split(".")
    try:
        for part in path:
            child = module._modules.get(part)
            if child is None:
                child = nn.Module()
                setattr(module, part, child)
            module = child
        module.register_parameter(own, parameter)
    except (KeyError, TypeError) as error:
        raise WorkloadError(
            f"tensor {name} of the profile cannot be a module's parameter: {error}"
        ) from None


class ReplayUpdate(torch.optim.Optimizer):
    """An optimizer that takes ``update_s`` and leaves the parameters alone."""

    def __init__(self, parameters: Iterable[nn.Parameter], update_s: float) -> None:
        super().__init__(parameters, {"lr": 0.0})
        self._update_s = update_s

    def step(self, closure: Any = None) -> Any:
        """Sleep the recorded time."""
        loss = None if closure is None else closure()
        time.sleep(self._update_s)
        return loss


def _batches(rank: int, world_size: int, epoch: int, seed: int) -> Iterator[int]:
    """Yield the numbers of this rank's batches: no two are the same."""
    for step in range(epoch * RANDOM_BATCHES, (epoch + 1) * RANDOM_BATCHES):
        yield step * world_size + rank


def replay(path: str, *, batch_size: int | None = None) -> Workload:
    """Return the workload that replays the profile in the file at ``path``.

    Args:
        path: a profile document.
        batch_size: must be that of the profile; None: take it from there.

    Raises:
        DocumentError: the file is no valid profile.
        WorkloadError: another batch size than the recorded one.
    """
    profile = Profile.load(path)
    if batch_size not in (None, profile.batch_size):
        raise WorkloadError(
            f"{path} holds times of batch size {profile.batch_size}, not {batch_size}: "
            f"profile the workload again with --batch-size {batch_size}"
        )
    return Workload(
        name=f"replay:{profile.model.name}",
        model=Replay(profile),
        optimizer=partial(ReplayUpdate, update_s=profile.update_s),
        batch_size=profile.batch_size,
        batches=_batches,
        loss=lambda model, batch: model(batch),
    )
