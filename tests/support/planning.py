"""From documents to a plan in one call."""

from comm_plan.planner import Settings, make_problem, solve


def planned(profile, network, solver="optimal", **settings):
    """Return the plan of ``solver`` under ``Settings(**settings)``, any accuracy."""
    asked = Settings(**{"accuracy": "loss"} | settings)
    return solve(make_problem(profile, network, asked), solver)
