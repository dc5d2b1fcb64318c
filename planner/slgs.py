"""SLGS: single-layer gradient sparsification, the baseline of the LAGS paper.

The whole model's top-k at the largest allowed ratio, sent in one message after backward
by all-gather: little to send, nothing hidden.
"""

from __future__ import annotations

from comm_plan.planner import single
from comm_plan.planner.problem import Problem, Solution
from comm_plan.plans.compression import ModelTopK


def solve(problem: Problem) -> Solution:
    """Return one sparse bucket per run of tensors that may share one.

    Raises:
        InputError: ``model_topk`` or all-gather was not measured.
    """
    sparse = problem.prices.option(ModelTopK(density=1 / problem.settings.max_ratio))
    return single.solve(problem.sent_by(sparse))
