"""From documents to a problem, and from a solution to a plan."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence

import numpy as np

from comm_plan.errors import InputError
from comm_plan.planner.collective_cost import best_bus_bandwidth
from comm_plan.planner.prices import Prices
from comm_plan.planner.problem import Problem, Settings, Solution
from comm_plan.planner.schedule import Compute, lower_bound_s
from comm_plan.plans.compression import Dense
from comm_plan.plans.network import Network
from comm_plan.plans.plan import Bucket, Inputs, Plan, PlannedModel, Predicted
from comm_plan.plans.profile import Profile


def make_problem(
    profile: Profile,
    network: Network,
    world_size: int | None = None,
    dense_layers: Sequence[str] | None = None,
    settings: Settings | None = None,
) -> Problem:
    """Return the problem of sending the model's gradients dense.

    Raises:
        InputError: the world size is below 1, a pattern of ``dense_layers`` matches
            nothing, or all-reduce was not measured.
    """
    ranks = network.world_size if world_size is None else world_size
    if ranks < 1:
        raise InputError(f"world size {ranks} is below 1: give the number of ranks")
    patterns = None if dense_layers is None else tuple(dense_layers)
    _check_patterns(profile, patterns or ())
    prices = Prices(profile, network, ranks, patterns)
    tensors = profile.tensors
    ready = profile.forward_s + np.array([tensor.ready_s for tensor in tensors])
    backward_end = profile.forward_s + profile.backward_s
    return Problem(
        compute=Compute(ready, max(backward_end, ready[-1]), profile.update_s),
        numel=np.array([tensor.numel for tensor in tensors]),
        nbytes=np.array([tensor.nbytes for tensor in tensors]),
        dtypes=tuple(tensor.dtype for tensor in tensors),
        layers=tuple(tensor.layer for tensor in tensors),
        world_size=ranks,
        assigned=(prices.option(Dense()),) * len(tensors),
        prices=prices,
        settings=settings or Settings(),
    )


def to_plan(
    problem: Problem,
    solver: str,
    solution: Solution,
    baselines: Mapping[str, float],
    link_bytes_per_s: float | None = None,
) -> Plan:
    """Return ``solution`` as a plan, with its prediction.

    Args:
        problem: what was solved.
        solver: the solver's name.
        solution: its buckets.
        baselines: predicted iteration seconds of other solvers, by name.
        link_bytes_per_s: link speed for the lower bound; None: from the network.
    """
    profile, network = problem.prices.profile, problem.prices.network
    timeline = problem.simulate(solution)
    extrapolated = problem.world_size != network.world_size
    names = [tensor.name for tensor in profile.tensors]
    return Plan(
        solver=solver,
        model=PlannedModel(
            name=profile.model.name, fingerprint=profile.model.fingerprint
        ),
        world_size=problem.world_size,
        backend=network.backend,
        buckets=tuple(
            Bucket(
                tensors=tuple(names[start:stop]),
                compressor=option.spec(start, stop),
                collective=option.collective,
            )
            for start, stop, option in solution.buckets()
        ),
        predicted=Predicted(
            iteration_s=timeline.iteration_s,
            exposed_s=timeline.exposed_s,
            lower_bound_s=dense_lower_bound_s(problem, link_bytes_per_s),
            baselines=dict(baselines),
            extrapolated_from=network.world_size if extrapolated else None,
        ),
        inputs=Inputs(profile_sha256=profile.sha256, network_sha256=network.sha256),
    )


def dense_lower_bound_s(
    problem: Problem, link_bytes_per_s: float | None = None
) -> float:
    """Return the iteration time that no dense plan beats on the network's links.

    Raises:
        InputError: the link speed is not above 0.
    """
    if link_bytes_per_s is None:
        link_bytes_per_s = best_bus_bandwidth(problem.prices.network)
    elif not link_bytes_per_s > 0:
        raise InputError(f"link speed {link_bytes_per_s} is not above 0: give bytes/s")
    return lower_bound_s(
        problem.compute, problem.nbytes, problem.world_size, link_bytes_per_s
    )


def _check_patterns(profile: Profile, patterns: Sequence[str]) -> None:
    names = {name for tensor in profile.tensors for name in (tensor.layer, tensor.name)}
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            example = profile.tensors[0].layer
            raise InputError(
                f"dense layers {pattern!r} matches no layer and no tensor: use names "
                f"of the profile, such as {example!r}"
            )
