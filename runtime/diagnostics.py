"""Is compression hurting? Residual norms, and the delta of LAGS, every few steps.

With error feedback the residuals of all ranks add up to what was not sent, and P times
the applied mean is what was. So for every tensor with k of d elements selected (LAGS
paper, Eq. 21, its random choice replaced by the expectation)::

    delta = ||sum of residuals||^2 / ((1 - k/d) * ||P * mean + sum of residuals||^2)

Assumption 1 of the paper, on which its convergence rests, holds while delta <= 1. Where
k is the bucket's, as for ``model_topk``, a tensor has none, and so no delta. Nor has it
where gTop-k puts back as printed: what is lost is in neither sum.

The sums cost a dense all-reduce of the residuals: use it now and then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from comm_plan.compressors.base import RESIDUAL
from comm_plan.errors import InputError, OutputError
from comm_plan.plans import Bucket, TopK, check_writable, selected
from comm_plan.plans.files import make_folder, read_text, write_atomically
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.trainer import Event, Watcher

Figures = Mapping[str, float]


def measure(engine: Engine) -> dict[str, float]:
    """Return ``residual_norm/NAME`` and maybe ``delta/NAME`` of each tensor.

    A method that selects over a whole bucket has no delta: it is for a tensor's own k.
    Nor has one that loses gradients, nor a plan that has sent nothing yet, at the end
    of the step in which it came.

    Call it on all ranks between ``optimizer.step()`` and ``zero_grad()``.
    """
    figures: dict[str, float] = {}
    for bucket in engine.buckets:
        residuals = bucket.compressor.state.get(RESIDUAL)
        if residuals is None:
            continue
        has_delta = _has_delta(bucket.planned) and bucket.sent_nbytes
        densities = bucket.planned.densities if has_delta else None
        for index, slot in enumerate(bucket.compressor.slots):
            total = residuals[index].clone()
            engine.transport.all_reduce(total)
            figures[f"residual_norm/{slot.name}"] = float(total.norm())
            if densities is None or bucket.parameters[index].grad is None:
                continue
            density = max(densities[index], bucket.compressor.density_floor)
            k = selected(slot.numel, density)
            mean = torch.empty_like(total)
            bucket.compressor.write(index, mean)  # that in .grad may have been clipped
            applied = mean * engine.transport.world_size
            figures[f"delta/{slot.name}"] = _delta(total, applied, k)
    return figures


def writer(path: Path, every: int) -> Watcher:
    """Return a watcher that measures every so many steps and writes to ``path``.

    Args:
        path: a ``.jsonl`` file: one JSON object a line, after those of earlier steps of
            the run that is resumed, if one is; else a folder for TensorBoard, which
            shows of a run that is resumed the same.
        every: steps between two measurements.

    Raises:
        InputError: TensorBoard is asked for and not installed.
        OutputError: the file or folder cannot be written, or later no longer.
    """
    _check(path)
    sink: Callable[[int, Figures], None] | None = None
    first: int | None = None

    def watch(event: Event, engine: Engine) -> None:
        nonlocal sink, first
        first = event.step if first is None else first
        if event.step % every:
            return
        figures = measure(engine)
        if engine.transport.rank == 0:
            try:
                sink = sink or _sink(path, event.step, goes_on=first > 1)
                sink(event.step, figures)
            except OSError as error:
                raise OutputError(
                    f"{path}: cannot be written: {error.strerror}"
                ) from None

    return watch


def _check(path: Path) -> None:
    """Fail now, before the training, if nothing could be written to ``path``."""
    if path.suffix == ".jsonl":
        check_writable(path)
    elif find_spec("tensorboard") is None:
        raise InputError(
            "TensorBoard is not installed: pip install 'comm-plan[tensorboard]', or "
            "give a file that ends in .jsonl"
        )
    else:
        make_folder(path)
        check_writable(path / "events")


def _has_delta(planned: Bucket) -> bool:
    spec = planned.compressor
    loses = isinstance(spec, TopK) and spec.as_printed
    return spec.selects_by_tensor and not (loses and planned.collective == "gtopk")


def _delta(total: torch.Tensor, applied: torch.Tensor, k: int) -> float:
    left = float(total.square().sum())
    random = (1 - k / total.numel()) * float((applied + total).square().sum())
    return left / random if random > 0 else 0.0


def _sink(path: Path, step: int, goes_on: bool) -> Callable[[int, Figures], None]:
    """Return what writes to ``path``, from ``step`` on, in place of an earlier run."""
    if path.suffix != ".jsonl":
        return _tensorboard(path, step if goes_on else None)
    write_atomically(path, _lines_before(path, step) if goes_on else "")
    return partial(_add_line, path)


def _lines_before(path: Path, step: int) -> str:
    """Return the lines of ``path``, if it is there, of steps before ``step``.

    A run that was killed may have written more than its last checkpoint knows, and the
    last line in part.
    """
    if not path.is_file():
        return ""
    kept = []
    for line in read_text(path).splitlines():
        with suppress(ValueError, TypeError, KeyError):  # in part, or not ours
            if json.loads(line)["step"] < step:
                kept.append(f"{line}\n")
    return "".join(kept)


def _add_line(path: Path, step: int, figures: Figures) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"step": step, **figures}) + "\n")


def _tensorboard(path: Path, goes_on_at: int | None) -> Callable[[int, Figures], None]:
    """Return what writes to ``path``, in place of steps from ``goes_on_at`` on."""
    from torch.utils.tensorboard import SummaryWriter

    board = SummaryWriter(str(path), purge_step=goes_on_at)

    def write(step: int, figures: Figures) -> None:
        for name, value in figures.items():
            board.add_scalar(name, value, step)
        board.flush()

    return write
