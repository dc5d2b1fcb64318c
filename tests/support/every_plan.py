"""Brute force: the times of all plans of a small model, by the definition."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np

from comm_plan.arrays import FloatArray, IntArray
from comm_plan.planner.option import Option
from comm_plan.planner.problem import Problem, Solution

NO_END = -1


@cache
def plans(tensors: int, options: int) -> IntArray:
    """Return [N, L]: for each plan and tensor the option of the bucket that ends there.

    ``NO_END`` where none ends.
    """
    inner = product((NO_END, *range(options)), repeat=tensors - 1)
    return np.array([(*ends, last) for ends in inner for last in range(options)])


def seconds(problem: Problem, options: Sequence[Option]) -> FloatArray:
    """Return [N] the iteration time of each of ``plans``; inf: it is not allowed."""
    tensors = len(problem)
    codes = plans(tensors, len(options))
    compress, channel = _tables(problem, options)
    begin = np.zeros(len(codes), dtype=int)
    spent, finish = np.zeros(len(codes)), np.zeros(len(codes))
    for index in range(tensors):
        option, stop = codes[:, index], index + 1
        ends = option != NO_END
        spent = np.where(ends, spent + compress[option, begin, stop], spent)
        ready = problem.compute.ready_s[index] + problem.compute.handoffs_s[index]
        start = np.maximum(finish, ready + spent)
        finish = np.where(ends, start + channel[option, begin, stop], finish)
        begin = np.where(ends, stop, begin)
    end = np.maximum(problem.compute.backward_end_s + spent, finish)
    return end + problem.compute.update_s


def simulated(problem: Problem, options: Sequence[Option]) -> FloatArray:
    """Return [N] the iteration time of each of ``plans`` by the planner's simulator.

    For what the definition above leaves out: contention.
    """
    count = len(plans(len(problem), len(options)))
    allowed = np.isfinite(seconds(problem, options))
    return np.array(
        [
            problem.simulate(solution(problem, options, which)).iteration_s
            if allowed[which]
            else np.inf
            for which in range(count)
        ]
    )


def solution(problem: Problem, options: Sequence[Option], which: int) -> Solution:
    """Return plan number ``which``."""
    code = plans(len(problem), len(options))[which]
    ends = np.flatnonzero(code != NO_END)
    return Solution(ends + 1, tuple(options[code[end]] for end in ends))


def _tables(
    problem: Problem, options: Sequence[Option]
) -> tuple[FloatArray, FloatArray]:
    """Return [O, L, L + 1] seconds on the compute stream and channel of each bucket."""
    tensors = len(problem)
    compress = np.zeros((len(options), tensors, tensors + 1))
    channel = np.full_like(compress, np.inf)
    for which, option in enumerate(options):
        for start, stop in product(range(tensors), range(1, tensors + 1)):
            if start < stop:
                compress[which, start, stop] = (
                    option.compress_s[stop] - option.compress_s[start]
                )
                one_dtype = len(set(problem.dtypes[start:stop])) == 1
                if one_dtype and option.allowed[start:stop].all():
                    channel[which, start, stop] = option.channel_s(start, stop)
    return compress, channel
