"""Every solver by name; a new one is one file in this room and one line here."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from comm_plan.errors import unknown
from comm_plan.plans.plan import TODAY

if TYPE_CHECKING:
    from comm_plan.planner.problem import Problem, Solution


@dataclass(frozen=True)
class Solver:
    """A module of this room with ``solve(problem) -> Solution``, loaded on first use.

    Attributes:
        module: its name.
        is_baseline: dense and cheap: every plan is compared with it.
        chooses_compression: it decides itself how a bucket is compressed.
        method: the one of ``METHODS`` that it then uses; None: what is allowed.
    """

    module: str
    is_baseline: bool = False
    chooses_compression: bool = False
    method: str | None = None

    def __call__(self, problem: Problem) -> Solution:
        """Return the module's solution of ``problem``."""
        module = import_module(f"comm_plan.planner.{self.module}")
        solution: Solution = module.solve(problem)
        return solution


MERGED = "optimal"
"""The best that merging alone can do."""

CHOOSING = "auto"
"""Chooses how each bucket is compressed, as little as the best time allows."""

TOLERANCE, MIN_GAIN, MAX_RATIO = 0.01, 0.1, 1000.0
"""What they allow for, unless told (see ``Settings``)."""

LARGEST_RATIO = 1e9
"""One element of a thousand million: no gradient is compressed further."""

SOLVERS = {
    MERGED: Solver("optimal", is_baseline=True),
    "mg-wfbp": Solver("mg_wfbp", is_baseline=True),
    TODAY: Solver("threshold", is_baseline=True),
    "wfbp": Solver("wfbp", is_baseline=True),
    "single": Solver("single", is_baseline=True),
    "lags": Solver("lags", chooses_compression=True, method="topk"),
    "slgs": Solver("slgs", chooses_compression=True, method="model-topk"),
    CHOOSING: Solver("auto", chooses_compression=True),
}
"""Every solver by its name on the command line."""

BASELINES = tuple(name for name, solver in SOLVERS.items() if solver.is_baseline)
"""Dense solvers that every plan is compared with."""


def find_solver(name: str) -> Solver:
    """Return the solver called ``name``.

    Raises:
        InputError: there is none.
    """
    if name not in SOLVERS:
        raise unknown("solver", name, SOLVERS)
    return SOLVERS[name]
