"""MG-WFBP: merged-gradient wait-free back-propagation, the paper's greedy rule.

Algorithm 1 of Shi, Chu, Li: "MG-WFBP: Efficient Data Communication for Distributed
Synchronous SGD Algorithms" (2019). Going through the layers in ready order, a layer is
merged into the next one when the next gradient is ready less than one start-up time
after this layer's communication could start (Eq. 27)::

    merge l  if  tau_b[l - 2] - tau_c[l] < a

where ``tau_b[l - 2]`` is when the next layer's gradient is ready. After each merge the
start times of all later communications are computed again.

The paper calls the rule optimal; it is not (see ``optimal``), it is a baseline here.

Differences from the paper: a merge at l changes the start times of later layers only,
which the loop has not looked at yet, so one pass in O(L) takes the same decisions as
the paper's O(L^2). The rule needs ``T(n) = a + b n``; where the network's cost is not
affine it gets the best line through it over the sizes that this model can send.
"""

from __future__ import annotations

import numpy as np

from comm_plan.planner.problem import Problem, Run, Solution


def solve(problem: Problem) -> Solution:
    """Return the paper's merged layers as buckets."""
    stops: list[int] = []
    free = 0.0
    for run in problem.runs:
        ready = problem.sendable_s[run.start : run.stop]
        alpha_s, each = _line(run)
        merged, free = merge(ready.tolist(), each, alpha_s, free)
        stops += [run.start + stop for stop in merged]
    return problem.solution(stops)


def merge(
    ready: list[float], per_tensor_s: list[float], alpha_s: float, free: float = 0.0
) -> tuple[list[int], float]:
    """Run Algorithm 1.

    Args:
        ready: [L] when each gradient can be sent.
        per_tensor_s: [L] what each adds to its message's time: ``b n``.
        alpha_s: the start-up time a.
        free: when the channel is free.

    Returns:
        The buckets' stops, and when the last one is sent.
    """
    stops = []
    held = 0.0
    start = max(free, ready[0])
    for index, seconds in enumerate(per_tensor_s):
        held += seconds
        following = index + 1
        last = following == len(ready)
        if not last and ready[following] - start < alpha_s:
            start = max(start, ready[following])
            continue
        stops.append(following)
        free = start + alpha_s + held
        held = 0.0
        if not last:
            start = max(free, ready[following])
    return stops, free


def _line(run: Run) -> tuple[float, list[float]]:
    """Return the start-up and each tensor's seconds on the line through the cost."""
    option = run.option
    if option.gathers_rows(run.start):
        return float(option.rows_s[run.start]), [0.0]
    inside = slice(run.start, run.stop + 1)
    alpha_s = option.bucket_s
    seconds = np.diff(option.codec_s[inside])
    for leg in option.legs:
        each = np.diff(leg.nbytes[inside])
        if not each.any():  # one length, whatever travels
            alpha_s += float(leg.curve(leg.fixed_nbytes))
            continue
        a, b = leg.curve.line(each.min(), each.sum())
        alpha_s += a + b * leg.fixed_nbytes
        seconds = seconds + b * each
    return alpha_s, seconds.tolist()
