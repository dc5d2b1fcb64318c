"""From documents to a problem, and from a solution to a plan."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from comm_plan import units
from comm_plan.collectives.registry import check_known
from comm_plan.errors import InputError
from comm_plan.planner import evidence
from comm_plan.planner.collective_cost import (
    best_bus_bandwidth,
    bus_rate,
    lasting_bus_bandwidth,
)
from comm_plan.planner.order import sending_order
from comm_plan.planner.prices import Prices
from comm_plan.planner.problem import Problem, Settings, Solution
from comm_plan.planner.schedule import Compute, Schedule, lower_bound_s
from comm_plan.planner.uncertainty import expected_error_s
from comm_plan.plans.compression import Spec, method
from comm_plan.plans.compression.rows import Rows
from comm_plan.plans.document import refused_as
from comm_plan.plans.network import Network
from comm_plan.plans.plan import Bucket, Inputs, Plan, PlannedModel, Predicted
from comm_plan.plans.profile import Profile, TensorTiming
from comm_plan.plans.timing import BucketTiming, Timing

FASTER_BY_CHANCE = 0.2
"""A network may be measured to be faster than its link by so much, not by more."""


def make_problem(
    profile: Profile, network: Network, settings: Settings | None = None
) -> Problem:
    """Return the problem of sending a model's gradients over a network.

    Args:
        profile: the model's gradient-ready times, and what compressors cost.
        network: what collectives cost.
        settings: what else is asked for; None: the defaults.

    Raises:
        InputError: a collective is unknown, a pattern of ``dense_layers`` matches
            nothing, steps are to be local and a gradient is sparse, a compressor is
            unknown or one of its options out of range, or a cost that is needed was not
            measured.
    """
    check_known(network.collectives)
    settings = settings or Settings()
    ranks = settings.world_size or network.world_size
    patterns = settings.dense_layers
    if patterns is not None:
        patterns = tuple(patterns)
        _check_patterns(profile, patterns)
    if settings.local_steps is not None:
        _check_whole(profile)
    given, tensors = profile, sending_order(profile.tensors)
    profile = given.model_copy(update={"tensors": tensors})
    prices = Prices(
        profile,
        network,
        ranks,
        patterns,
        settings.algorithm,
        settings.momentum_correction,
    )
    problem = Problem(
        compute=Compute.of(profile, ranks, settings.round_steps),
        nbytes=np.array([_nbytes(tensor, ranks) for tensor in tensors]),
        dtypes=tuple(_dtype(tensor) for tensor in tensors),
        layers=tuple(tensor.layer for tensor in tensors),
        world_size=ranks,
        assigned=(prices.dense,) * len(tensors),
        prices=prices,
        settings=settings,
        given=given,
    )
    if settings.compressor is None:
        return problem
    spec, collective = method(settings.compressor, **settings.options)
    return problem.sent_by(prices.fitted(spec, collective))


def to_plan(
    problem: Problem,
    solver: str,
    solution: Solution,
    schedule: Schedule,
    baselines: Mapping[str, float],
    lower_bound_s: float,
) -> Plan:
    """Return ``solution`` as a plan, with its prediction.

    Args:
        problem: what was solved.
        solver: the solver's name.
        solution: its buckets.
        schedule: the iteration under them.
        baselines: predicted iteration seconds of other solvers, by name.
        lower_bound_s: what :func:`dense_lower_bound_s` returns for the problem.

    Raises:
        DocumentError: a predicted time is beyond what a plan may hold.
    """
    profile, network = problem.prices.profile, problem.prices.network
    settings = problem.settings
    error_s = expected_error_s(problem, solution)
    names = [tensor.name for tensor in profile.tensors]
    with refused_as(f"the plan of solver {solver}"):
        return Plan(
            solver=solver,
            model=PlannedModel(
                name=profile.model.name, fingerprint=profile.model.fingerprint
            ),
            world_size=problem.world_size,
            backend=network.backend,
            buckets=tuple(
                Bucket(
                    tensors=tuple(names[start:stop]), compressor=spec, collective=how
                )
                for start, stop, spec, how in _sent(profile, solution)
            ),
            predicted=Predicted(
                iteration_s=schedule.iteration_s / settings.round_steps,
                exposed_s=schedule.exposed_s / settings.round_steps,
                lower_bound_s=lower_bound_s,
                baselines=dict(baselines),
                extrapolated_from=problem.extrapolated_from,
                timing=_timing(problem.compute, schedule),
                error_s=error_s and error_s / settings.round_steps,
            ),
            inputs=Inputs(
                profile_sha256=problem.given.sha256,
                network_sha256=network.sha256,
                batch_size=profile.batch_size,
                threads=profile.threads,
            ),
            emulated_link=network.emulated_link if problem.world_size > 1 else None,
            momentum_correction=settings.momentum_correction
            and any(option.compressor.sparse for option in solution.options),
            local_steps=settings.local_steps,
            evidence=(
                *evidence.of_local_steps(settings.round_steps),
                *evidence.of(
                    solution.options, momentum_correction=settings.momentum_correction
                ),
            ),
            asked=settings.asked(),
        )


def _sent(profile: Profile, solution: Solution) -> Iterator[tuple[int, int, Spec, str]]:
    """Yield start, stop, compressor and collective of each bucket."""
    for start, stop, option in solution.buckets():
        if profile.tensors[start].rows is None:
            yield start, stop, option.spec(start, stop), option.collective
        else:
            yield start, stop, Rows(), Rows.default_collective()


def _dtype(tensor: TensorTiming) -> str:
    """Return what must be equal within a bucket; a sparse gradient has its own."""
    return tensor.dtype if tensor.rows is None else f"rows of {tensor.name}"


def _nbytes(tensor: TensorTiming, world_size: int) -> int:
    """Return the bytes of a gradient, or whose all-reduce takes those of its rows."""
    if tensor.rows is None:
        return tensor.nbytes
    return world_size * tensor.rows_nbytes // 2


def _timing(compute: Compute, schedule: Schedule) -> Timing:
    rows = [schedule.ready_s, schedule.start_s, schedule.finish_s]
    rows.append(schedule.times.codec_s * schedule.slowdown)
    return Timing(
        backward_start_s=compute.backward_start_s,
        compute_end_s=schedule.compute_end_s,
        buckets=tuple(
            BucketTiming(ready_s=ready, start_s=start, finish_s=finish, codec_s=codec)
            for ready, start, finish, codec in np.stack(rows).T.tolist()
        ),
    )


def dense_lower_bound_s(problem: Problem) -> float:
    """Return the iteration time that no dense plan beats on the network's links.

    Of those that average every gradient. The links are as fast as the network shows, or
    as its all-reduce is taken to be among other ranks: of the closed forms that carry
    it there, those of trees and recursive doubling do not keep the bus bandwidth.

    Raises:
        InputError: the link that was asked for is slower than the longest messages
            were, or the network says nothing about all-reduce.
    """
    link, ranks, prices = (
        problem.settings.link_bytes_per_s,
        problem.world_size,
        problem.prices,
    )
    lasting = lasting_bus_bandwidth(prices.network)
    if link is None:
        rate = prices.curve("allreduce").best_rate
        carried = bus_rate("allreduce", rate, ranks)
        link = max(best_bus_bandwidth(prices.network), carried)
    elif link < (1 - FASTER_BY_CHANCE) * lasting:
        raise InputError(
            f"a link of {units.bits_per_s(8 * link)} is slower than the longest "
            f"measured messages were, {units.bits_per_s(8 * lasting)}: give its own "
            "speed, or none"
        )
    compute = Compute.of(problem.given, ranks)
    nbytes = np.array([_nbytes(tensor, ranks) for tensor in problem.given.tensors])
    return lower_bound_s(compute, nbytes, ranks, link)


def _check_whole(profile: Profile) -> None:
    """Check that no gradient is sparse, as what ranks come in several steps is not."""
    for tensor in profile.tensors:
        if tensor.rows is not None:
            raise InputError(
                f"local steps: the gradient of {tensor.name} is sparse, and how far it "
                "comes in a round is not: build the layer with sparse=False"
            )


def _check_patterns(profile: Profile, patterns: Sequence[str]) -> None:
    names = {name for tensor in profile.tensors for name in (tensor.layer, tensor.name)}
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            example = profile.tensors[0].name
            raise InputError(
                f"dense layers {pattern!r} matches no layer and no tensor: use names "
                f"of the profile, such as {example!r}"
            )
