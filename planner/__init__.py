"""Plans: which gradients travel together, how compressed, by which collective.

::

    problem = make_problem(profile, network, Settings(world_size=16))
    plan = solve(problem, "optimal")            # one plan, with the baselines' times
    summary = summarise(problem, ["optimal"])   # the same as rows, with a verdict

A solver is one file with ``solve(problem) -> Solution`` and one line in ``SOLVERS``.
Importing this package loads nothing else: names are looked up on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from comm_plan.planner.again import replan
    from comm_plan.planner.documents import make_problem
    from comm_plan.planner.problem import Problem, Settings, Solution
    from comm_plan.planner.solvers import BASELINES, SOLVERS, find_solver
    from comm_plan.planner.summary import Summary, solve, summarise

_HOMES = {
    "make_problem": "documents",
    "Problem": "problem",
    "Settings": "problem",
    "Solution": "problem",
    "BASELINES": "solvers",
    "SOLVERS": "solvers",
    "find_solver": "solvers",
    "Summary": "summary",
    "replan": "again",
    "solve": "summary",
    "summarise": "summary",
}

__all__ = [
    "BASELINES",
    "SOLVERS",
    "Problem",
    "Settings",
    "Solution",
    "Summary",
    "find_solver",
    "make_problem",
    "replan",
    "solve",
    "summarise",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
