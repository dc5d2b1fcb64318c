"""What must be known beside a prediction: what it rests on, and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from comm_plan import units
from comm_plan.planner import evidence
from comm_plan.planner.option import Option
from comm_plan.planner.problem import Problem, Solution
from comm_plan.plans.compression.rows import Rows
from comm_plan.plans.compression.words import Words
from comm_plan.plans.network import Network

BEYOND = 2
"""A message that is so many times as long as any measured one is worth a word."""

STOLEN = 0.05
"""Where a virtual machine did not get so much of its processors, times are longer."""


def remarks(
    problem: Problem, solution: Solution, error_s: float | None
) -> Iterator[str]:
    """Yield in a sentence each what training by ``solution`` will do besides.

    Args:
        problem: what was solved.
        solution: its buckets.
        error_s: how far its prediction may be off; None: not known.
    """
    yield from _second_moments(problem, solution)
    if problem.world_size > 1:
        yield from _decided_by_data(problem, solution)
    yield from _measured_alone(problem)
    yield from _stolen(problem)
    yield from beyond_samples(problem.prices.network, [(problem, solution)])
    if error_s is not None:
        advice = ": tune tries plans" if problem.world_size > 1 else ""
        yield (
            f"measurements scatter by {units.seconds(error_s)} (one standard "
            f"deviation); what the model leaves out comes on top{advice}"
        )
    yield from evidence.of_local_steps(problem.settings.round_steps)
    corrected = problem.settings.momentum_correction
    for known in evidence.of(solution.options, momentum_correction=corrected):
        yield f"accuracy: {known}"


def _second_moments(problem: Problem, solution: Solution) -> Iterator[str]:
    moments = problem.prices.profile.second_moments
    wanting = {
        option.compressor.kind
        for option in solution.options
        if option.compressor.needs_second_moments
    }
    if not wanting:
        return
    names = " and ".join(sorted(wanting))
    if moments is not None and moments.objection is not None:
        yield (
            f"{names} will take second moments from {moments.micro_batches} "
            f"micro-batches: {moments.objection}"
        )
    if moments is None or moments.extra_s is None:
        yield (
            f"the times of {names} leave out what second moments take: the profile "
            "does not say"
        )


def _decided_by_data(problem: Problem, solution: Solution) -> Iterator[str]:
    """Yield how much is expected to be sent where the data decides it."""
    told = "expected_density" in problem.settings.options
    specs = {o.compressor.kind: o.compressor for o in solution.options}
    for kind, spec in specs.items():
        if not isinstance(spec, Words) or told:
            continue
        share = f"{units.percent(spec.expected_density)} of the elements"
        example = type(spec).example()
        seen = problem.prices.expected(example)
        if seen is not example and seen == spec:
            yield (
                f"{kind} sends what the data lets it: {share}, as when the model was "
                "profiled; that changes as training goes on"
            )
        else:
            yield (
                f"{kind} sends what the data lets it: that these are {share} is a "
                "guess, as the profile has not seen it with these options"
            )


def _measured_alone(problem: Problem) -> Iterator[str]:
    """Yield that the profile is of ranks that did not meet, or of one."""
    profile = problem.prices.profile
    together = 0 if profile.contention is None else profile.contention.world_size
    if profile.iterations is not None and together <= 1 < problem.world_size:
        yield (
            "the profile does not say how ranks and their communication slow each "
            "other, as it is of one rank or of your own loop: comm-plan profile, "
            "started as you will train (torchrun, mpirun, --local-ranks), measures it"
        )


def _stolen(problem: Problem) -> Iterator[str]:
    """Yield that a virtual machine did not get all of its processors' time."""
    stolen = problem.prices.profile.stolen
    if stolen is not None and stolen >= STOLEN:
        yield (
            f"{units.percent(stolen)} of the processors' time went to others than "
            "this machine while the profile was measured: computation may be faster or "
            "slower when you train"
        )


def beyond_samples(
    network: Network, solved: Iterable[tuple[Problem, Solution]]
) -> Iterator[str]:
    """Yield that messages are far longer than what was measured, of each collective.

    Args:
        network: what was measured.
        solved: problems with that network, each with its buckets.
    """
    longest: dict[str, float] = {}
    for problem, solution in solved:
        for collective, nbytes in _messages(problem, solution):
            longest[collective] = max(nbytes, longest.get(collective, 0.0))
    for collective, nbytes in longest.items():
        cost = network.collectives.get(collective)
        most = cost.samples[-1].nbytes if cost and cost.samples else nbytes
        if nbytes > BEYOND * most:
            yield (
                f"{collective} was measured up to {units.nbytes(most)}, the longest "
                f"message has {units.nbytes(nbytes)}: benchmark-network with a larger "
                "--max-bytes"
            )


def _messages(problem: Problem, solution: Solution) -> Iterator[tuple[str, float]]:
    """Yield what carries each bucket, and its bytes; nothing is sent by one rank."""
    if problem.world_size > 1:
        for start, stop, option in solution.buckets():
            yield _sent(problem, start, stop, option)


def _sent(problem: Problem, start: int, stop: int, option: Option) -> tuple[str, float]:
    """Return what carries a bucket, and the bytes of its buffer.

    Args:
        problem: what was solved.
        start: index of the bucket's first tensor.
        stop: index after its last.
        option: how it travels, unless it is a sparse gradient, whose rows are gathered.
    """
    first = problem.prices.profile.tensors[start]
    if first.rows is not None:
        rows_nbytes = problem.world_size * first.rows_nbytes
        return Rows.default_collective(), float(rows_nbytes)
    leg = option.legs[-1]
    nbytes = float(leg.nbytes[stop] - leg.nbytes[start]) + leg.fixed_nbytes
    return option.collective, nbytes
