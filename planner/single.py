"""SyncEASGD: everything in one bucket, sent after backward.

No overlap, one start-up (MG-WFBP paper, section V: "single-layer communication"). A
baseline. A model with several dtypes needs a bucket for each run of one dtype.
"""

from __future__ import annotations

from comm_plan.planner.problem import Problem, Solution


def solve(problem: Problem) -> Solution:
    """Return one bucket per run of tensors that may share one."""
    return problem.solution([run.stop for run in problem.runs])
