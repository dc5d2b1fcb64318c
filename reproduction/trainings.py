"""Short trainings for what the papers measure by training, on this machine.

Four local ranks on gloo start once and train the handwritten digits under every job's
plan, one after the other, by the function that ``comm-plan train`` calls::

    run(folder)    # writes FOLDER/trainings.json

What is kept holds no times: curves of loss and of the compression ratio, accuracy, and
LAGS's delta where there is one.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import torch

from comm_plan.errors import InputError, RunError
from comm_plan.plans import Bucket, Plan, PlannedModel, Profile
from comm_plan.plans.compression import Spec, TopK, Vgc
from comm_plan.plans.files import check_writable, make_folder, write_atomically
from comm_plan.profiler import profile_from_speed
from comm_plan.reproduction.ternarised import Ternarised, train_ternarised
from comm_plan.runtime import diagnostics
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.trainer import Event, Options, train
from comm_plan.transports.connect import connect
from comm_plan.transports.launch import run_local
from comm_plan.workloads import load

FILE = "trainings.json"
WORKLOAD = "digits"
RANKS = 4
STEPS = 100
WINDOWS = 5
"""Points of a curve: means over so many equal parts of a run."""

DELTA_EVERY = 10

DENSITIES = (0.05, 0.01, 0.001)
ALPHAS = tuple(Vgc(alpha=alpha) for alpha in (1.0, 1.5, 2.0))
ZETAS = tuple(Vgc(alpha=1.5, zeta=zeta) for zeta in (0.99, 1.0))  # beside alpha's 0.999


@dataclass(frozen=True)
class Job:
    """A training: a name, a compressor for all tensors and its collective."""

    name: str
    compressor: Spec | None = None
    collective: str = "allreduce"


@dataclass(frozen=True)
class Trained:
    """What a training came to.

    Attributes:
        name: the job's.
        losses: [WINDOWS] mean training loss of each part of the run, rank 0's.
        ratios: [WINDOWS] dense bytes over message bytes of each part.
        accuracy: on held-out data, at the end.
        deltas: of all tensors and measured steps; LAGS, Eq. 21.
    """

    name: str
    losses: list[float]
    ratios: list[float]
    accuracy: float
    deltas: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Dense bytes over message bytes of the whole run."""
        return 1 / mean(1 / ratio for ratio in self.ratios)


@dataclass(frozen=True)
class Trainings:
    """All of them, and where they ran.

    Attributes:
        context: what the figures depend on.
        runs: the distributed trainings.
        ternarised: the one for TernGrad's figures.
    """

    context: dict[str, str]
    runs: list[Trained]
    ternarised: list[Ternarised]

    def run(self, name: str) -> Trained:
        """Return the training of the job called ``name``."""
        return next(run for run in self.runs if run.name == name)

    @classmethod
    def read(cls, path: Path) -> Trainings:
        """Return what :func:`run` wrote.

        Raises:
            InputError: there is nothing at ``path``, or not all of that.
        """
        again = "leave --models-only out to train now"
        if not path.is_file():
            raise InputError(f"{path} is not there: {again}")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            read = cls(
                found["context"],
                [Trained(**run) for run in found["runs"]],
                [Ternarised(**moment) for moment in found["ternarised"]],
            )
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path} holds no trainings: {again}") from None
        missing = {job.name for job in jobs()} - {run.name for run in read.runs}
        if missing:
            raise InputError(f"{path} lacks {', '.join(sorted(missing))}: {again}")
        return read


def jobs() -> list[Job]:
    """Return everything to train."""
    found = [Job("dense")]
    found += [Job(f"gtopk {d:g}", TopK(density=d), "gtopk") for d in DENSITIES]
    found.append(Job("topk 0.01", TopK(density=0.01), "allgather"))
    found += [Job(vgc_name(spec), spec, "allgather") for spec in (*ALPHAS, *ZETAS)]
    return found


def vgc_name(spec: Vgc) -> str:
    """Return the name of a job."""
    return f"vgc alpha {spec.alpha:g}, zeta {spec.zeta:g}"


def run(folder: Path, progress: Callable[[str], None] = lambda text: None) -> None:
    """Train everything and write ``FOLDER/trainings.json``.

    Raises:
        RunError: a rank failed.
        OutputError: the file could not be written.
    """
    make_folder(folder)
    check_writable(folder / FILE)
    progress(f"{len(jobs())} trainings on {RANKS} ranks")
    with TemporaryDirectory() as temporary:
        output = Path(temporary) / FILE
        command = [sys.executable, "-m", __name__, str(output)]
        if run_local(command, RANKS):
            raise RunError("a training failed: its rank has said why")
        found = json.loads(output.read_text(encoding="utf-8"))
    kept = {"context": _context(), **found}
    write_atomically(folder / FILE, json.dumps(kept, indent=1) + "\n")


def _context() -> dict[str, str]:
    return {
        "workload": WORKLOAD,
        "ranks": str(RANKS),
        "steps": str(STEPS),
        "torch": torch.__version__,
        "machine": platform.machine(),
    }


# On the ranks


def main(output: Path) -> None:
    """Be one rank: do every job; rank 0 writes what they came to."""
    torch.set_num_threads(1)
    profile = profile_from_speed(load(WORKLOAD), 1e9)
    found: dict[str, Sequence[Trained | Ternarised]]
    runs: list[Trained] = []
    with connect("gloo") as transport:
        for job in jobs():
            watcher = _Watcher(measures_delta=isinstance(job.compressor, TopK))
            options = Options(steps=STEPS, watcher=watcher)
            record = train(load(WORKLOAD), plan(profile, job), transport, options)
            if record.evaluations:  # rank 0's
                accuracy = record.evaluations[-1].value
                runs.append(watcher.trained(job.name, accuracy))
    if runs:
        found = {"runs": runs, "ternarised": train_ternarised(RANKS, STEPS)}
        as_json = {kind: [asdict(x) for x in each] for kind, each in found.items()}
        output.write_text(json.dumps(as_json))


def plan(profile: Profile, job: Job) -> Plan:
    """Return the plan with all tensors in one bucket, compressed as ``job`` says."""
    names = tuple(tensor.name for tensor in profile.tensors)
    if job.compressor is None:
        bucket = Bucket(tensors=names)
    else:
        given: Mapping[str, Any] = {"compressor": job.compressor}
        bucket = Bucket(tensors=names, collective=job.collective, **given)
    model = PlannedModel(name=profile.model.name, fingerprint=profile.model.fingerprint)
    return Plan(
        solver="single",
        model=model,
        world_size=RANKS,
        backend="gloo",
        buckets=(bucket,),
    )


class _Watcher:
    """Notes each step's loss and bytes, and delta now and then."""

    def __init__(self, measures_delta: bool) -> None:
        self._measures_delta = measures_delta
        self._losses: list[float] = []
        self._sent: list[float] = []
        self._deltas: list[float] = []

    def __call__(self, event: Event, engine: Engine) -> None:
        self._losses.append(event.loss)
        self._sent.append(event.message_nbytes / event.dense_nbytes)
        if self._measures_delta and event.step % DELTA_EVERY == 0:
            figures = diagnostics.measure(engine).items()
            self._deltas += [v for name, v in figures if name.startswith("delta/")]

    def trained(self, name: str, accuracy: float) -> Trained:
        """Return the curves."""
        ratios = [1 / share for share in windows(self._sent)]
        return Trained(name, windows(self._losses), ratios, accuracy, self._deltas)


def windows(values: Sequence[float]) -> list[float]:
    """Return the means of equal parts."""
    edges = [round(i * len(values) / WINDOWS) for i in range(WINDOWS + 1)]
    return [mean(values[a:b]) for a, b in pairwise(edges)]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
