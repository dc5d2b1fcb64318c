"""What the accuracy benchmark keeps: finished runs, their table and their picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from comm_plan.benchmarks.pictures import Point
from comm_plan.planner.evidence import Task
from comm_plan.plans import RunRecord, write_atomically

RISING = ("accuracy",)
"""Metrics that are better the higher they are."""


@dataclass(frozen=True)
class Run:
    """One finished training run.

    ``compressed_ratio`` leaves out the buckets that the plan keeps dense. ``device``:
    where the tensors were.
    """

    variant: str
    seed: int
    metric: str
    value: float
    steps: int
    dense_nbytes: float
    message_nbytes: float
    compressed_ratio: float
    history: list[float]
    device: str = "cpu"

    @property
    def ratio(self) -> float:
        """Dense bytes over message bytes of a mean step."""
        return self.dense_nbytes / self.message_nbytes


def summarised(variant: str, record: RunRecord, device: str) -> Run:
    """Return what the table needs of the record of a run on ``device``."""
    assert record.traffic is not None
    assert record.seed is not None
    last = record.evaluations[-1]
    sent = [b for b in record.traffic.buckets if b.kind != "dense"]
    sent = sent or list(record.traffic.buckets)
    return Run(
        variant=variant,
        seed=record.seed,
        metric=last.metric,
        value=last.value,
        steps=record.steps,
        dense_nbytes=record.traffic.dense_nbytes,
        message_nbytes=record.traffic.message_nbytes,
        compressed_ratio=sum(b.dense_nbytes for b in sent)
        / sum(b.message_nbytes for b in sent),
        history=[evaluation.value for evaluation in record.evaluations],
        device=device,
    )


class Results:
    """A file with plans and finished runs, which grows run by run.

    Args:
        path: of the file; it need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def _content(self) -> dict[str, Any]:
        if not self._path.exists():
            return {"plans": {}, "forms": {}, "runs": []}
        found: dict[str, Any] = json.loads(self._path.read_text())
        return found

    @property
    def runs(self) -> list[Run]:
        """The finished runs, in the order in which they ended."""
        return [Run(**run) for run in self._content()["runs"]]

    @property
    def plans(self) -> Mapping[str, Any]:
        """The plans, by the names of the variants."""
        plans: Mapping[str, Any] = self._content()["plans"]
        return plans

    @property
    def forms(self) -> Mapping[str, str]:
        """What each variant stands for; old files do not say."""
        forms: Mapping[str, str] = self._content().get("forms", {})
        return forms

    def add(self, run: Run) -> None:
        """Write ``run`` after the others."""
        content = self._content()
        content["runs"].append(asdict(run))
        self._write(content)

    def keep(self, **facts: Any) -> None:
        """Write what belongs to all runs: the network, the plans, the forms."""
        self._write({**self._content(), **facts})

    def _write(self, content: Mapping[str, Any]) -> None:
        write_atomically(self._path, json.dumps(content, indent=1) + "\n")


def by_variant(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs of each variant, dense first, else in their order."""
    names = dict.fromkeys(["dense", *(run.variant for run in runs)])
    return {name: [run for run in runs if run.variant == name] for name in names}


NOISE = {"accuracy": 0.003, "loss": 0.02}
"""What the mean of a method may be worse than that of dense in any case."""


def comparable(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs of each variant whose seeds dense has too, dense first.

    Seeds differ by more than methods do, so only equal ones are compared. Variants that
    have none in common with dense are left out.
    """
    every = by_variant(runs)
    seeds = {run.seed for run in every["dense"]}
    shared = {
        name: [run for run in of_variant if run.seed in seeds]
        for name, of_variant in every.items()
    }
    return {name: found for name, found in shared.items() if found}


def beside(dense: Sequence[Run], of_variant: Sequence[Run]) -> list[float]:
    """Return the values of ``dense`` with the seeds of ``of_variant``."""
    seeds = {run.seed for run in of_variant}
    return [run.value for run in dense if run.seed in seeds]


def measured(task: str, runs: Sequence[Run]) -> dict[str, Task]:
    """Return what each variant but dense did in a task, beside dense of its seeds.

    Args:
        task: its name.
        runs: of one length.
    """
    every = comparable(runs)
    dense_runs = every.pop("dense", [])
    sign, found = 1 if runs[0].metric in RISING else -1, {}
    for name, of_variant in every.items():
        dense = beside(dense_runs, of_variant)
        worst = min(sign * value for value in dense)
        value = mean(run.value for run in of_variant)
        behind = sign * (mean(dense) - value)
        found[name] = Task(
            name=task,
            metric=runs[0].metric,
            steps=runs[0].steps,
            seeds=len(of_variant),
            difference=value - mean(dense),
            within_noise=behind <= NOISE[runs[0].metric] or sign * value >= worst,
            ratio=mean(run.ratio for run in of_variant),
        )
    return found


def table(runs: Sequence[Run]) -> list[str]:
    """Return the lines of a Markdown table."""
    variants = comparable(runs)
    metric = runs[0].metric
    lines = [
        f"| method | seeds | {metric}: mean | range | to dense | ratio | part |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, found in variants.items():
        values = [run.value for run in found]
        dense = mean(beside(variants["dense"], found))
        ratio = mean(run.ratio for run in found)
        part = mean(run.compressed_ratio for run in found)
        lines.append(
            f"| {name} | {len(values)} | {shown(metric, mean(values))} "
            f"| {shown(metric, min(values))} to {shown(metric, max(values))} "
            f"| {difference(metric, mean(values) - dense)} "
            f"| {ratio:.3g} | {part:.3g} |"
        )
    return lines


def tuning_table(runs: Sequence[Run]) -> list[str]:
    """Return a row for each value that was tried."""
    lines = [
        f"| tuning, seed {runs[0].seed} | {runs[0].metric} | ratio |",
        "|---|---:|---:|",
    ]
    for run in runs:
        value = shown(run.metric, run.value)
        lines.append(f"| {run.variant} | {value} | {run.ratio:.3g} |")
    return lines


def points(runs: Sequence[Run], forms: Mapping[str, str]) -> list[Point]:
    """Return a point for each variant: its mean ratio, and the range of its metric.

    Args:
        runs: of one task.
        forms: of the variants, by name; others are left out.
    """
    found = []
    for name, of_variant in comparable(runs).items():
        if name in forms:
            values = [run.value for run in of_variant]
            found.append(
                Point(
                    name=name,
                    group=forms[name],
                    x=mean(run.ratio for run in of_variant),
                    y=mean(values),
                    lowest=min(values),
                    highest=max(values),
                )
            )
    return found


def shown(metric: str, value: float) -> str:
    """Return ``value`` for people."""
    return f"{100 * value:.2f} %" if metric == "accuracy" else f"{value:.3f}"


def difference(metric: str, value: float) -> str:
    """Return a difference from dense for people."""
    return f"{100 * value:+.2f} pp" if metric == "accuracy" else f"{value:+.3f}"
