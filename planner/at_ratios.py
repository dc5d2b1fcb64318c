"""Exact merging of gradients that are each sparsified at a ratio of their own."""

from __future__ import annotations

from dataclasses import replace

from comm_plan.arrays import FloatArray
from comm_plan.planner import joint, optimal
from comm_plan.planner.option import Option
from comm_plan.planner.problem import Problem, Solution
from comm_plan.plans.compression import TopK


def sparse_at(problem: Problem, ratios: FloatArray) -> Option:
    """Return top-k by all-gather with a density of its own for every tensor.

    Args:
        problem: the model and the network.
        ratios: [L] numel / k of each tensor, rounded as a plan's densities are.

    Raises:
        InputError: top-k or all-gather was not measured.
    """
    return problem.prices.option(TopK(density=tuple((1 / ratios).tolist())))


def merged(problem: Problem, ratios: FloatArray) -> Solution:
    """Return the fastest buckets in which every tensor has its ratio of ``ratios`` [L].

    1 is dense, or, where that costs no time, every element along with sparse
    neighbours.
    """
    dense, sparse = problem.prices.dense, sparse_at(problem, ratios)
    apart = merged_apart(problem, ratios, sparse)
    limit_s = problem.simulate(apart).iteration_s
    options = [dense.except_on(ratios > 1), sparse]
    together = joint.within(problem, options, limit_s)
    return _dense_where_whole(together or apart, ratios, dense)


def merged_apart(problem: Problem, ratios: FloatArray, sparse: Option) -> Solution:
    """Return the fastest buckets of which each is all dense or all ``sparse``.

    Args:
        problem: the model and the network.
        ratios: [L] of each tensor; 1: dense.
        sparse: what :func:`sparse_at` returns for them.
    """
    dense = problem.prices.dense
    assigned = tuple(sparse if ratio > 1 else dense for ratio in ratios)
    return optimal.fastest(replace(problem, assigned=assigned))


def _dense_where_whole(
    solution: Solution, ratios: FloatArray, dense: Option
) -> Solution:
    """Return ``solution`` with buckets that send every element by all-reduce.

    The search may leave them sparse where that costs nothing in time; it would still
    send an index along with each element.
    """
    chosen = tuple(
        dense if (ratios[start:stop] == 1).all() else option
        for start, stop, option in solution.buckets()
    )
    return replace(solution, options=chosen)
