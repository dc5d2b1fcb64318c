"""From a workload to the plan to run: measure, solve, try, advise."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from comm_plan.errors import InputError
from comm_plan.planner import Settings
from comm_plan.plans import Network, Profile
from comm_plan.plans.link import link_text
from comm_plan.plans.parameters import trainable
from comm_plan.runtime.momentum import can_be_corrected
from comm_plan.transports.base import Transport
from comm_plan.tuner.candidates import Candidates, candidates
from comm_plan.tuner.measuring import profiled, swept
from comm_plan.tuner.options import Options
from comm_plan.tuner.session import Session
from comm_plan.tuner.tuned import Tuned
from comm_plan.workloads.base import Workload

logger = logging.getLogger("comm_plan")

Save = Callable[[Tuned], None]


def tune(
    workload: Workload,
    transport: Transport,
    options: Options,
    save: Save = lambda tuned: None,
) -> Tuned:
    """Find the plan to train ``workload`` by on these ranks; every rank calls this.

    Args:
        workload: its model is left as it was, on the transport's device.
        transport: the ranks.
        options: how.
        save: called on rank 0 with the best so far: when all is measured, after each
            round, and after each seed of the trainings.

    Returns:
        The same on all ranks, but for the seconds that it took.

    Raises:
        InputError: there is one rank only, the profile is of another batch size, the
            budget does not suffice, or a cost is missing.
        CollectiveError: a collective failed.
    """
    started_s = time.perf_counter()
    if transport.world_size == 1:
        raise InputError(
            "one rank has nothing to communicate, and tune nothing to try: start more "
            "(torchrun, mpirun, --local-ranks)"
        )
    if options.profile is not None:
        _check_batch_size(options.profile, workload)
    settings = _for_these(workload, transport, options.settings)
    options = replace(options, settings=settings)
    if options.network is not None:
        _compare(options.network, transport)
    # First: that a network is too slow for the budget shows within seconds.
    network = options.network or swept(
        transport, _nbytes(workload), options.budget_s, options.progress
    )
    profile = options.profile or profiled(
        workload,
        transport,
        settings.kinds(),
        options.budget_s,
        options.progress,
        find_unused_parameters=options.find_unused_parameters,
    )
    listed: Candidates = transport.broadcast_object(
        candidates(
            profile,
            network,
            options.settings,
            options.objective,
            local_steps=options.local_steps,
        )
        if transport.rank == 0
        else None
    )
    session = Session(workload, transport, options, profile, network, listed, started_s)
    for _ in session.steps():
        if transport.rank == 0:
            save(session.result())
    result = session.result()
    if transport.rank == 0:
        save(result)
    return result


def _nbytes(workload: Workload) -> int:
    """Return the size of all gradients in bytes."""
    parameters = trainable(workload.model).values()
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def _check_batch_size(profile: Profile, workload: Workload) -> None:
    """Check that ``profile`` holds times of batches as the workload has them.

    Raises:
        InputError: it does not.
    """
    if profile.batch_size != workload.batch_size:
        raise InputError(
            f"the profile holds times of batch size {profile.batch_size}, the workload "
            f"has {workload.batch_size}: profile it again with that batch size, or "
            "leave --profile out"
        )


def _compare(network: Network, transport: Transport) -> None:
    """Warn, on rank 0, where ``network`` was not measured on ``transport``."""
    measured, here = _described(network), _described(transport)
    if transport.rank == 0 and measured != here:
        logger.warning("the network is that of %s; these are %s", measured, here)


def _described(ranks: Network | Transport) -> str:
    link = link_text(ranks.emulated_link)
    return f"{ranks.world_size} ranks on {link} by {ranks.backend}"


def _for_these(
    workload: Workload, transport: Transport, settings: Settings
) -> Settings:
    """Return ``settings`` for so many ranks, and for the workload's optimizer.

    Momentum is corrected if it is SGD's.
    """
    optimizer = workload.optimizer(workload.model.parameters())
    return replace(
        settings,
        world_size=transport.world_size,
        momentum_correction=can_be_corrected(optimizer),
    )
