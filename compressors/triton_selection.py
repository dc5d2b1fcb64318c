"""Top-k selection on the GPU in one pass over the data, without host synchronisation.

Error feedback with top-k does three things to every element: add the gradient to the
residual, find the k largest by magnitude, and take those out of the residual. The first
must read two floats and write one, 12 bytes an element; this module finds the k largest
in that same pass.

**Keys.** ``key(x)`` is the bits of ``|x|`` as an int32. It orders floats by magnitude,
and selecting by (key descending, index ascending) makes the answer unique.

**Speculation.** Magnitudes change slowly from step to step. So the pass that
accumulates also gathers the indices of all keys at or above a threshold a little below
the previous step's k-th key. If between k and ``capacity`` elements were gathered, the
k largest are among them, and all that follows looks at these candidates only. If not
(the first step, another k, a jump in the data) the same kernels look at all elements.
Each kernel reads from the gathered count, on the device, which of the two it is;
programs with nothing to do return at once.

**Selection** is exact, by radix: three histograms of the key's 11, 10 and 10 bits, from
the top, each over the elements that share the digits found so far, give the k-th key
and how many keys lie above it. Then every block of the residual counts its keys above
and equal to it, a prefix sum over the blocks turns the counts into positions, and each
block writes its selected elements there: in index order, ties to the lowest index. The
candidates of one block are contiguous and in order, so this needs no sorting.

**Compilation.** Triton compiles a kernel again for an integer that is 1, a multiple of
16, or neither. That of ``n`` lets it load vectors; ``k`` and ``capacity`` are exempt,
as a model's tensors would have all nine pairs of them.

**Threshold.** The next threshold is the k-th magnitude times ``1 - slack``; the slack
grows when fewer than 1.5 k candidates were gathered, and shrinks above 2.5 k. Both stay
on the device. The result does not depend on them, so a resumed run may start without.

A threshold that is reused between steps is Ok-Topk's idea (Li and Hoefler, PPoPP 2022);
there the number of elements sent varies with it, here the k largest are sent.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from comm_plan.errors import InputError

BLOCK = 4096
LANES = 256
PROGRAMS = 512
CANDIDATES_PER_K = 4
DIGITS = ((20, 11), (10, 10), (0, 10))
"""Shift and width of the digits of a 31-bit key, the most significant first."""

NOTHING_EXCEEDS = 0x7FFFFFFF
FIRST_SLACK = 0.05

# Where each quantity lies in the int32 scratch of one call; all start at zero.
_COUNT, _PREFIX, _ABOVE, _HISTOGRAMS = 0, 1, 2, 64


@dataclass(frozen=True)
class SelectionState:
    """What one tensor's selection remembers on the device to be fast next time.

    Attributes:
        threshold: int32 [1], the key from which the next step gathers candidates.
        slack: float32 [1], how far the threshold lies below the k-th magnitude.
        found: int32 [1], how many candidates the last call gathered; between k and
            ``CANDIDATES_PER_K * k`` they were enough.
    """

    threshold: torch.Tensor
    slack: torch.Tensor
    found: torch.Tensor

    @classmethod
    def fresh(cls, device: torch.device) -> SelectionState:
        """Return the state before the first step; nothing is gathered in that one."""
        int32, float32 = torch.int32, torch.float32
        return cls(
            threshold=torch.full((1,), NOTHING_EXCEEDS, dtype=int32, device=device),
            slack=torch.full((1,), FIRST_SLACK, dtype=float32, device=device),
            found=torch.zeros(1, dtype=int32, device=device),
        )


def accumulate_and_select(
    residual: torch.Tensor,
    gradient: torch.Tensor,
    k: int,
    state: SelectionState | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the gradient to the residual and take its k largest elements out.

    Nothing is read back to the host, so the call can be captured in a CUDA graph.

    Args:
        residual: float32 [n], contiguous, finite, n < 2**31 - 4096; updated in place:
            what is returned is zero in it afterwards.
        gradient: [n], contiguous, any floating dtype, finite; only read.
        k: how many elements to take, 1 <= k <= n.
        state: what the previous call on this residual left, updated in place; without
            one the result is the same and comes slower.

    Returns:
        values: float32 [k].
        indices: int32 [k], ascending.

    Raises:
        InputError: k, a size, a dtype or a layout is not as above.
    """
    _check(residual, gradient, k)
    with torch.cuda.device_of(residual):  # else kernels run on the current one
        return _select(residual, gradient, k, state)


def _select(
    residual: torch.Tensor,
    gradient: torch.Tensor,
    k: int,
    state: SelectionState | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    n, device = residual.numel(), residual.device
    state = SelectionState.fresh(device) if state is None else state
    blocks = triton.cdiv(n, BLOCK)
    grid = (blocks,)
    capacity = min(n, CANDIDATES_PER_K * k)
    bins = [1 << width for _, width in DIGITS]
    scratch = torch.zeros(_HISTOGRAMS + sum(bins), dtype=torch.int32, device=device)
    count, prefix, above = (scratch[i:] for i in (_COUNT, _PREFIX, _ABOVE))
    histograms = torch.split(scratch[_HISTOGRAMS:], bins)
    candidates = torch.empty(capacity, dtype=torch.int32, device=device)
    gathered = torch.empty((2, blocks), dtype=torch.int32, device=device)
    tally = torch.empty((2, blocks), dtype=torch.int32, device=device)
    values = torch.empty(k, dtype=torch.float32, device=device)
    indices = torch.empty(k, dtype=torch.int32, device=device)

    _accumulate[grid](
        residual, gradient, state.threshold, candidates, count, gathered,
        n, capacity, BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip
    for (shift, width), histogram in zip(DIGITS, histograms, strict=True):
        _histogram[(min(blocks, PROGRAMS),)](
            residual, candidates, count, prefix, histogram,
            n, k, capacity, SHIFT=shift, WIDTH=width, BLOCK=BLOCK, num_warps=8,
        )  # fmt: skip
        _pick_digit[(1,)](histogram, prefix, above, k, WIDTH=width, num_warps=8)
    _tally[grid](
        residual, candidates, count, gathered, prefix, tally,
        n, k, capacity, BLOCK=BLOCK, LANES=LANES, num_warps=1,
    )  # fmt: skip
    running = torch.cumsum(tally, dim=1, dtype=torch.int32)
    _take[grid](
        residual, candidates, count, gathered, prefix, above, tally, running,
        values, indices,
        n, k, capacity, BLOCK=BLOCK, LANES=LANES, num_warps=1,
    )  # fmt: skip
    _aim[(1,)](prefix, count, k, state.threshold, state.slack, state.found)
    return values, indices


def _check(residual: torch.Tensor, gradient: torch.Tensor, k: int) -> None:
    n = residual.numel()
    if not 1 <= k <= n:
        raise InputError(f"k is {k} for {n} elements: choose k from 1 to {n}")
    if gradient.numel() != n:
        raise InputError(
            f"gradient has {gradient.numel()} elements, residual {n}: pass tensors of "
            "one size"
        )
    if residual.dtype != torch.float32:
        raise InputError(f"residual is {residual.dtype}: keep it in torch.float32")
    if not (residual.is_contiguous() and gradient.is_contiguous()):
        raise InputError("residual or gradient is not contiguous: pass flat copies")


@triton.jit
def _key(value):
    """Return the magnitude's bits, ordered like the magnitude."""
    return value.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _speculated(count, k, capacity):
    """Return whether the candidates hold the k largest."""
    return (count >= k) & (count <= capacity)


@triton.jit(do_not_specialize=["capacity"])
def _accumulate(
    residual_ptr, gradient_ptr, threshold_ptr, candidates_ptr, count_ptr, gathered_ptr,
    n, capacity, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add, store, and gather what reaches the threshold; one program a block.

    ``gathered`` [2, blocks]: where a block's candidates start, and how many they are.
    """
    block = tl.program_id(0)
    index = block * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    value = tl.load(residual_ptr + index, mask=inside, other=0.0)
    value += tl.load(gradient_ptr + index, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual_ptr + index, value, mask=inside)

    reaches = inside & (_key(value) >= tl.load(threshold_ptr))
    found = tl.sum(reaches.to(tl.int32))
    start = tl.atomic_add(count_ptr, found, sem="relaxed")
    place = start + tl.cumsum(reaches.to(tl.int32)) - 1
    tl.store(candidates_ptr + place, index, mask=reaches & (place < capacity))
    tl.store(gathered_ptr + block, start)
    tl.store(gathered_ptr + tl.num_programs(0) + block, found)


@triton.jit(do_not_specialize=["k", "capacity"])
def _histogram(
    residual_ptr, candidates_ptr, count_ptr, prefix_ptr, histogram_ptr,
    n, k, capacity, SHIFT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Count one digit over the elements that share the digits found so far.

    Digit 0 is not counted: it is what remains when the others are too few.
    """
    count = tl.load(count_ptr)
    speculated = _speculated(count, k, capacity)
    size = tl.where(speculated, count, n)
    prefix = tl.load(prefix_ptr)
    bins = tl.arange(0, 1 << WIDTH)
    counts = tl.zeros([1 << WIDTH], dtype=tl.int32)
    for start in range(tl.program_id(0) * BLOCK, size, tl.num_programs(0) * BLOCK):
        index = start + tl.arange(0, BLOCK)
        inside = index < size
        if speculated:
            index = tl.load(candidates_ptr + index, mask=inside, other=0)
        key = _key(tl.load(residual_ptr + index, mask=inside, other=0.0))
        inside = inside & ((key >> SHIFT) >> WIDTH == prefix)
        digit = tl.where(inside, (key >> SHIFT) & ((1 << WIDTH) - 1), 0)
        counts += tl.histogram(digit, 1 << WIDTH)
    counted = (counts > 0) & (bins > 0)
    tl.atomic_add(histogram_ptr + bins, counts, mask=counted, sem="relaxed")


@triton.jit(do_not_specialize=["k"])
def _pick_digit(histogram_ptr, prefix_ptr, above_ptr, k, WIDTH: tl.constexpr):
    """Extend the prefix by the digit of the k-th key; one program."""
    bins = tl.arange(0, 1 << WIDTH)
    counts = tl.load(histogram_ptr + bins)
    at_least = tl.sum(counts) - tl.cumsum(counts) + counts
    above = tl.load(above_ptr)
    digit = tl.max(tl.where(above + at_least >= k, bins, 0))
    above += tl.sum(tl.where(bins > digit, counts, 0))
    tl.store(above_ptr, above)
    tl.store(prefix_ptr, (tl.load(prefix_ptr) << WIDTH) | digit)


@triton.jit
def _size(gathered_ptr, speculated, n, BLOCK: tl.constexpr):
    """Return how many elements this block has to look at."""
    block = tl.program_id(0)
    gathered = tl.load(gathered_ptr + tl.num_programs(0) + block)
    return tl.where(speculated, gathered, tl.minimum(n - block * BLOCK, BLOCK))


@triton.jit
def _members(
    lane, size, residual_ptr, candidates_ptr, gathered_ptr, speculated,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Return index, value and mask of some lanes of this block, in index order."""
    block = tl.program_id(0)
    inside = lane < size
    index = block * BLOCK + lane
    if speculated:
        start = tl.load(gathered_ptr + block)
        index = tl.load(candidates_ptr + start + lane, mask=inside, other=0)
    value = tl.load(residual_ptr + index, mask=inside, other=0.0)
    return index, value, inside


@triton.jit(do_not_specialize=["k", "capacity"])
def _tally(
    residual_ptr, candidates_ptr, count_ptr, gathered_ptr, kth_ptr, tally_ptr,
    n, k, capacity, BLOCK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Count each block's keys above and equal to the k-th; ``tally`` [2, blocks]."""
    speculated = _speculated(tl.load(count_ptr), k, capacity)
    size = _size(gathered_ptr, speculated, n, BLOCK)
    kth = tl.load(kth_ptr)
    higher = tl.zeros([LANES], dtype=tl.int32)
    equal = tl.zeros([LANES], dtype=tl.int32)
    for first in range(0, size, LANES):
        _, value, inside = _members(
            first + tl.arange(0, LANES), size,
            residual_ptr, candidates_ptr, gathered_ptr, speculated, BLOCK,
        )  # fmt: skip
        key = _key(value)
        higher += (inside & (key > kth)).to(tl.int32)
        equal += (inside & (key == kth)).to(tl.int32)
    block = tl.program_id(0)
    tl.store(tally_ptr + block, tl.sum(higher))
    tl.store(tally_ptr + tl.num_programs(0) + block, tl.sum(equal))


@triton.jit(do_not_specialize=["k", "capacity"])
def _take(
    residual_ptr, candidates_ptr, count_ptr, gathered_ptr, kth_ptr, above_ptr,
    tally_ptr, running_ptr, values_ptr, indices_ptr,
    n, k, capacity, BLOCK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Write each block's selected elements to their place and zero the residual."""
    block = tl.program_id(0)
    blocks = tl.num_programs(0)
    higher_before = tl.load(running_ptr + block) - tl.load(tally_ptr + block)
    ties = tl.load(running_ptr + blocks + block) - tl.load(tally_ptr + blocks + block)
    ties_wanted = k - tl.load(above_ptr)
    place = higher_before + tl.minimum(ties, ties_wanted)

    speculated = _speculated(tl.load(count_ptr), k, capacity)
    size = _size(gathered_ptr, speculated, n, BLOCK)
    kth = tl.load(kth_ptr)
    for first in range(0, size, LANES):
        index, value, inside = _members(
            first + tl.arange(0, LANES), size,
            residual_ptr, candidates_ptr, gathered_ptr, speculated, BLOCK,
        )  # fmt: skip
        key = _key(value)
        equal = (inside & (key == kth)).to(tl.int32)
        in_time = ties + tl.cumsum(equal) <= ties_wanted
        taken = inside & ((key > kth) | ((key == kth) & in_time))
        target = place + tl.cumsum(taken.to(tl.int32)) - 1
        tl.store(values_ptr + target, value, mask=taken)
        tl.store(indices_ptr + target, index, mask=taken)
        tl.store(residual_ptr + index, 0.0, mask=taken)
        ties += tl.sum(equal)
        place += tl.sum(taken.to(tl.int32))


@triton.jit(do_not_specialize=["k"])
def _aim(kth_ptr, count_ptr, k, threshold_ptr, slack_ptr, found_ptr):
    """Set the next threshold, above zero; one program."""
    count = tl.load(count_ptr)
    candidates_per_k = count.to(tl.float32) / k
    slack = tl.load(slack_ptr)
    slack = tl.where(candidates_per_k < 1.5, slack * 1.5, slack)
    slack = tl.where(candidates_per_k > 2.5, slack / 1.5, slack)
    slack = tl.minimum(tl.maximum(slack, 0.001), 0.5)
    magnitude = tl.load(kth_ptr).to(tl.float32, bitcast=True) * (1.0 - slack)
    tl.store(threshold_ptr, tl.maximum(_key(magnitude), 1))
    tl.store(slack_ptr, slack)
    tl.store(found_ptr, count)
