"""Plans: which gradients travel together, how compressed, by which collective.

A solver is one file with ``solve(problem) -> Solution`` and one line in ``SOLVERS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from comm_plan.errors import InputError
from comm_plan.planner import (
    auto,
    lags,
    mg_wfbp,
    optimal,
    single,
    slgs,
    threshold,
    wfbp,
)
from comm_plan.planner.documents import make_problem, to_plan
from comm_plan.planner.prices import method
from comm_plan.planner.problem import Problem, Settings, Solution
from comm_plan.plans.network import Network
from comm_plan.plans.plan import Plan
from comm_plan.plans.profile import Profile

SOLVERS: dict[str, Callable[[Problem], Solution]] = {
    "optimal": optimal.solve,
    "mg-wfbp": mg_wfbp.solve,
    "threshold": threshold.solve,
    "wfbp": wfbp.solve,
    "single": single.solve,
    "lags": lags.solve,
    "slgs": slgs.solve,
    "auto": auto.solve,
}
"""Every solver by its name on the command line."""

CHOOSE_COMPRESSION = frozenset({"auto", "lags", "slgs"})
"""Solvers that decide themselves how a bucket is compressed."""

BASELINES = ("wfbp", "single", "threshold", "mg-wfbp", "optimal")
"""Dense solvers that every plan is compared with."""


def find_solver(name: str) -> Callable[[Problem], Solution]:
    """Return the solver called ``name``.

    Raises:
        InputError: there is none.
    """
    if name not in SOLVERS:
        known = ", ".join(SOLVERS)
        raise InputError(f"solver {name!r} is unknown: use one of {known}")
    return SOLVERS[name]


def solve(
    profile: Profile,
    network: Network,
    solver: str = "optimal",
    *,
    world_size: int | None = None,
    link_bytes_per_s: float | None = None,
    compressor: str | None = None,
    options: Mapping[str, object] | None = None,
    dense_layers: Sequence[str] | None = None,
    settings: Settings | None = None,
) -> Plan:
    """Return the plan of ``solver`` for a model on a network.

    Args:
        profile: the model's gradient-ready times, and what compressors cost.
        network: what collectives cost.
        solver: one of :data:`SOLVERS`.
        world_size: number of ranks to plan for. None: as measured; another one is an
            extrapolation, and the plan says so.
        link_bytes_per_s: a rank's link speed, for the lower bound. None: the best bus
            bandwidth that ``network`` shows.
        compressor: how every bucket is compressed, one of
            ``prices.METHODS``; None: dense, unless the solver decides.
        options: fields of the compressor's spec that shall differ from the default.
        dense_layers: patterns of layers or tensors never to be compressed. None: those
            that the method keeps dense by default.
        settings: what else to ask of the solvers.

    Returns:
        A plan with its prediction, those of the dense baselines, and the hashes of what
        it was computed from.

    Raises:
        InputError: an unknown solver or compressor, a compressor for a solver that
            chooses its own, an option out of its range, or a cost that was not
            measured.
    """
    solve_problem = find_solver(solver)
    if options and compressor is None:
        raise InputError(
            f"options {', '.join(options)} are given without a compressor: name one"
        )
    if compressor is not None and solver in CHOOSE_COMPRESSION:
        raise InputError(
            f"solver {solver} chooses the compressor itself: leave {compressor!r} out, "
            "or use solver optimal"
        )
    dense = make_problem(
        profile, network, world_size, dense_layers, settings or Settings()
    )
    problem = dense
    if compressor is not None:
        spec, collective = method(compressor, **(options or {}))
        problem = dense.sent_by(dense.prices.option(spec, collective))
    solution = solve_problem(problem)
    baselines = {
        name: dense.simulate(SOLVERS[name](dense)).iteration_s
        for name in BASELINES
        if name != solver
    }
    return to_plan(problem, solver, solution, baselines, link_bytes_per_s)
