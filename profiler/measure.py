"""Measure a workload: its times, and what compressors cost beside them.

How long its parts take and when each gradient is ready (``iterations``); on several
ranks, what an iteration takes beyond its parts because ranks wait for each other
(``waiting``), and how much computation and communication slow each other
(``contention``); what compressors cost on their own (``compression``) and within the
training (``in_place``); how well matrices of low rank approximate the gradients
(``low_rank``); how much is sent, and how long that takes, where the data decides it
(``sent``). The medians are taken in ``assembly``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from comm_plan.errors import InputError
from comm_plan.plans import Profile
from comm_plan.plans.compression import PowerSgd, spec_class
from comm_plan.plans.parameters import model_fingerprint, numel_of, trainable
from comm_plan.profiler.assembly import assemble, check_parameters, with_findings
from comm_plan.profiler.compression import compression_costs
from comm_plan.profiler.contention import contention
from comm_plan.profiler.environment import usable_device
from comm_plan.profiler.handoff import handoff_s
from comm_plan.profiler.in_place import in_place
from comm_plan.profiler.iterations import Iterations
from comm_plan.profiler.low_rank import with_low_rank
from comm_plan.profiler.ranks import check_same_model
from comm_plan.profiler.second_moments import with_second_moments
from comm_plan.profiler.sent import with_sent
from comm_plan.profiler.stolen import watch as watch_stolen
from comm_plan.profiler.timings import Measurable, PassProgress, Trial
from comm_plan.runtime.agreement import check_buffers
from comm_plan.runtime.restored import restored
from comm_plan.transports.base import Transport
from comm_plan.transports.local import LocalTransport

Progress = Callable[[int, int, str], None]

ITERATIONS = "iterations"
"""What is going on while iterations are timed."""

MIN_ITERATIONS = 20
"""Fewer give no stable medians."""

HANDOFF_ITERATIONS = 10
"""Iterations in which gradients are handed to another thread."""


def measure(
    workload: Measurable,
    transport: Transport | None = None,
    *,
    device: str = "cpu",
    kinds: Sequence[str] = (),
    iterations: int | None = None,
    warmup: int = 5,
    find_unused_parameters: bool = False,
    progress: Progress = lambda done, total, what: None,
) -> Profile:
    """Return the profile of ``workload``, whose model is as before afterwards.

    Args:
        workload: what to measure; its model is moved to the device.
        transport: on several ranks: every rank calls this, and all get one profile.
        device: without a transport: ``cpu``, ``cuda`` or ``cuda:1``.
        kinds: which compressors to measure.
        iterations: how many to measure, 20 or more; None: 40, and of short ones as
            many more as there is time for, 200 at most.
        warmup: how many to run before.
        find_unused_parameters: parameters may get no gradient, though all get one in
            the first iterations.
        progress: called with what is done, of how much, and what is going on.

    Raises:
        InputError: too few iterations, no such device or compressor, or a model without
            trainable parameters, with a dtype that cannot be sent or with buffers that
            cannot follow rank 0.
        MismatchError: the ranks have different models.
        RunError: a parameter got no gradient in a late iteration, for the first time,
            without ``find_unused_parameters``.
    """
    if iterations is not None and iterations < MIN_ITERATIONS:
        raise InputError(
            f"iterations is {iterations}, medians need {MIN_ITERATIONS}: raise it"
        )
    ranks = transport or LocalTransport(usable_device(device))
    model = workload.model.to(ranks.device)
    check_parameters(workload.name, trainable(model))
    check_same_model(ranks.gather_objects(model_fingerprint(model)))
    check_buffers(model, ranks)

    def watch(what: str) -> PassProgress:
        return lambda done, total: progress(done, total, what)

    stolen = watch_stolen()
    with restored(model):
        timed = Iterations(workload, ranks, iterations, warmup, watch(ITERATIONS))
        profile = _timed(workload, ranks, kinds, timed, find_unused_parameters, watch)
    profile = with_sent(
        workload,
        profile,
        kinds,
        ranks,
        watch("what the data lets methods send"),
        find_unused_parameters=find_unused_parameters or timed.some_were_unused,
    )
    shares = ranks.gather_objects(stolen())
    told = [share for share in shares if share is not None]
    return profile.model_copy(update={"stolen": max(told, default=None)})


def _timed(
    workload: Measurable,
    ranks: Transport,
    kinds: Sequence[str],
    timed: Iterations,
    find_unused_parameters: bool,
    watch: Callable[[str], PassProgress],
) -> Profile:
    """Return what can be timed; the iterations train the model."""
    parameters = trainable(workload.model)
    timed.window()
    costs = compression_costs(
        max(parameter.numel() for parameter in parameters.values()),
        kinds=kinds,
        device=str(ranks.device),
        transport=ranks,
        progress=watch("compressors"),
    )
    timed.window()
    lag_s = _lag_s(timed.trial, ranks)
    apart = Trial(workload, ranks)
    beside = contention(apart, ranks, numel_of(parameters))
    found = ranks.gather_objects(apart.look())
    timed.window()
    so_far = with_findings(_assembled(workload, timed, lag_s), found)
    so_far = so_far.model_copy(update={"compression": costs})
    costs = in_place(
        workload,
        so_far,
        ranks,
        watch("compressors in place"),
        find_unused_parameters=find_unused_parameters or timed.some_were_unused,
    )
    timed.window()
    profile = with_findings(_assembled(workload, timed, lag_s), found)
    profile = profile.model_copy(update={"contention": beside, "compression": costs})
    if PowerSgd in map(spec_class, kinds):
        profile = with_low_rank(workload, profile, ranks, watch("low ranks"))
    if any(spec_class(kind).needs_second_moments for kind in kinds):
        profile = with_second_moments(workload, profile, ranks)
    return profile


def _assembled(workload: Measurable, timed: Iterations, lag_s: float) -> Profile:
    """Return what the windows so far say."""
    return assemble(
        workload.name,
        workload.batch_size,
        timed.trial.parameters,
        timed.of_ranks,
        lag_s=lag_s,
        waiting_s=timed.waiting_s,
    )


def _lag_s(trial: Trial, ranks: Transport) -> float:
    """Return what handing a gradient to another thread takes; a device has no such."""
    if ranks.device.type != "cpu":
        return 0.0
    own_s = handoff_s(trial.parameters, trial.iterate, HANDOFF_ITERATIONS)
    slowest_s: float = max(ranks.gather_objects(own_s))
    return slowest_s
