"""Selecting the largest k on a GPU: the one-pass kernel against torch.topk.

Each method does the whole step of error feedback: add the gradient to the residual,
select, reset what was selected. Times are medians by CUDA events around one step; with
``graph`` the step is replayed from a CUDA graph, which leaves out the time that Python
needs to launch kernels. GB/s counts the 12 bytes an element that any method must move.
``add`` moves just these and is the floor.

    python -m comm_plan.benchmarks.gpu_selection -o benchmarks/results/gpu-selection
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

from comm_plan.benchmarks.tables import markdown
from comm_plan.plans import selected

NBYTES_PER_ELEMENT = 12
WARM_UP = 10

Step = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One method at one density.

    ``ratio`` is torch.topk's time, launched in the same way, over this one's.
    """

    method: str
    numel: int
    density: float
    median_s: float
    gigabytes_per_s: float
    ratio: float


class Data:
    """A residual and gradients that change from step to step."""

    def __init__(self, numel: int, density: float) -> None:
        self.k = selected(numel, density)
        self.residual = torch.zeros(numel, device="cuda")
        self.gradient = torch.randn(numel, device="cuda")

    def next_gradient(self) -> None:
        """Draw the gradient of the next step."""
        self.gradient.normal_()


def add(data: Data) -> Step:
    """Return the floor: only the accumulation."""
    return lambda: data.residual.add_(data.gradient)


def torch_topk(data: Data) -> Step:
    """Return the step as PyTorch's own operations do it."""

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        data.residual.add_(data.gradient)
        indices = data.residual.abs().topk(data.k, sorted=False).indices
        values = data.residual[indices]
        data.residual.index_fill_(0, indices, 0.0)
        return values, indices

    return step


def one_pass(data: Data) -> Step:
    """Return the step as the Triton kernels do it, with the threshold kept."""
    from comm_plan.compressors import triton_selection as triton

    state = triton.SelectionState.fresh(data.residual.device)
    return lambda: triton.accumulate_and_select(
        data.residual, data.gradient, data.k, state
    )


def one_pass_stateless(data: Data) -> Step:
    """Return the same without a threshold: every step looks at all elements."""
    from comm_plan.compressors import triton_selection as triton

    return lambda: triton.accumulate_and_select(data.residual, data.gradient, data.k)


METHODS = {
    "add": add,
    "torch.topk": torch_topk,
    "one pass": one_pass,
    "one pass, no threshold yet": one_pass_stateless,
}


def captured(step: Step) -> Step:
    """Return ``step`` as the replay of a CUDA graph, which uses its tensors."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay() -> Step:
        graph.replay()
        return step  # and so keep what it remembers: the graph has only its address

    return replay


def seconds(step: Step, data: Data) -> float:
    """Return the time of a step on a new gradient."""
    data.next_gradient()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    step()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def measure(numel: int, density: float, repetitions: int) -> list[Row]:
    """Return a row for every method, launched from Python and from a graph.

    They take turns.
    """
    steps: dict[tuple[str, bool], tuple[Step, Data]] = {}
    for name, method in METHODS.items():
        for graph in (False, True):
            data = Data(numel, density)
            step = method(data)
            steps[name, graph] = captured(step) if graph else step, data
    times = [
        {which: seconds(*each) for which, each in steps.items()}
        for _ in range(WARM_UP + repetitions)
    ]
    middle = {which: median(row[which] for row in times[WARM_UP:]) for which in steps}
    return [
        Row(
            method=f"{name} (graph)" if graph else name,
            numel=numel,
            density=density,
            median_s=time_s,
            gigabytes_per_s=NBYTES_PER_ELEMENT * numel / time_s / 1e9,
            ratio=middle["torch.topk", graph] / time_s,
        )
        for (name, graph), time_s in middle.items()
    ]


def page(rows: list[Row], environment: dict[str, str]) -> str:
    """Return the rows as a table, the environment above it."""
    where = ", ".join(f"{key} {value}" for key, value in environment.items())
    head = ("method", "elements", "density", "median", "GB/s", "torch.topk / this")
    cells = [
        (
            row.method,
            f"{row.numel:.3g}",
            f"{row.density:g}",
            f"{1e6 * row.median_s:.0f} us",
            f"{row.gigabytes_per_s:.0f}",
            f"{row.ratio:.2f}",
        )
        for row in rows
    ]
    return f"{where}\n\n{markdown(head, cells)}\n"


def environment() -> dict[str, str]:
    """Return what the numbers depend on."""
    import triton

    return {
        "GPU": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "CUDA": str(torch.version.cuda),
    }


def main() -> None:
    """Measure and write ``OUTPUT.json`` and ``OUTPUT.md``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("gpu-selection"))
    parser.add_argument("--numel", type=int, nargs="+", default=[25_000_000])
    parser.add_argument(
        "--density", type=float, nargs="+", default=[0.0001, 0.001, 0.01, 0.1]
    )
    parser.add_argument("--repetitions", type=int, default=50)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device here: run it where torch.cuda.is_available()")
    rows = [
        row
        for numel in options.numel
        for density in options.density
        for row in measure(numel, density, options.repetitions)
    ]
    where = environment()
    result = {"environment": where, "rows": [asdict(row) for row in rows]}
    options.output.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
    text = page(rows, where)
    options.output.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
