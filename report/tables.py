"""Documents as rich tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from comm_plan import units
from comm_plan.plans import (
    Contention,
    Document,
    Network,
    PhaseRates,
    Plan,
    Profile,
    RunRecord,
    Spread,
    Tuning,
)
from comm_plan.plans.profile import SecondMoments, Sent
from comm_plan.report.facts import Fact
from comm_plan.report.network import overview, table
from comm_plan.report.plan import BUCKET_HEADER, bucket_rows, plan_rows
from comm_plan.report.run import BUCKET_TRAFFIC_HEADER, bucket_traffic_rows, run_rows
from comm_plan.report.tuning import (
    JUDGED_HEADER,
    TRIAL_HEADER,
    judged_rows,
    trial_rows,
    tuning_rows,
)

LARGEST = 10  # tensors of a profile that are listed


def tables(document: Document, *, briefly: bool = False) -> Iterator[Table]:
    """Yield the tables that say what a document holds.

    Args:
        document: of any kind.
        briefly: of a network show no collective but all-reduce size by size.
    """
    if isinstance(document, Network):
        for collective in document.collectives:
            if not briefly or collective == "allreduce":
                yield table(document, collective)
        yield overview(document)
    elif isinstance(document, Profile):
        yield _summary("profile", profile_rows(document))
        yield _listing(
            _tensors_title(len(document.tensors)),
            ("tensor", "shape", "size", "ready after"),
            tensor_rows(document),
        )
    elif isinstance(document, Plan):
        yield _summary("plan", plan_rows(document))
        yield _listing("buckets, in launch order", BUCKET_HEADER, bucket_rows(document))
    elif isinstance(document, RunRecord):
        yield _summary("run", run_rows(document))
        if document.traffic is not None:
            yield _listing(
                "traffic by bucket, per step and rank",
                BUCKET_TRAFFIC_HEADER,
                bucket_traffic_rows(document),
            )
    elif isinstance(document, Tuning):
        yield _summary("tuning", tuning_rows(document))
        yield _listing(
            "plans that were tried",
            TRIAL_HEADER,
            trial_rows(document),
            caption="measured: as if the baseline, which is in every round, had been "
            "equally fast in all",
        )
        judged = judged_rows(document)
        if judged:
            yield _listing("trained beside each other", JUDGED_HEADER, judged)


def profile_rows(profile: Profile) -> list[Fact]:
    """Return the summary of a profile."""
    rows = [
        ("model", f"{profile.model.name}, {profile.model.parameters:,} parameters"),
        ("device", f"{profile.device.type}, {profile.device.name}"),
        ("batch size", str(profile.batch_size)),
        ("forward", _with_spread(profile.forward_s, profile.forward_spread)),
        ("backward", _with_spread(profile.backward_s, profile.backward_spread)),
        ("update", units.seconds(profile.update_s)),
        ("waiting for each other", units.seconds(profile.waiting_s)),
        (
            "gradients",
            f"{units.counted(len(profile.tensors), 'tensor')}, "
            f"{units.nbytes(profile.nbytes)}",
        ),
    ]
    if profile.iterations is not None:
        rows.append(("iterations", f"{profile.iterations}, medians"))
    if profile.stolen is not None:
        rows.append(("time given to others", units.percent(profile.stolen)))
    if profile.contention is not None:
        rows.append(("beside communication", _contention(profile.contention)))
    if profile.compression:
        rows.append(("compressors costed", ", ".join(profile.compression)))
    if profile.second_moments is not None:
        rows.append(("second moments", _second_moments(profile.second_moments)))
    if profile.sent:
        rows.append(("sent where data decides", _sent(profile.sent)))
    return rows


def _second_moments(found: SecondMoments) -> str:
    """Return how they can be had, and what they take."""
    if not found.fit:
        return f"none: {found.objection}"
    how = f"from {found.micro_batches} micro-batches" if found.objection else "exact"
    if found.extra_s is None:
        return how
    return f"{how}, {units.seconds(found.extra_s)} more an iteration"


def _sent(found: Mapping[str, Sent]) -> str:
    """Return what each method sends, with momentum correction too if that is known."""

    def said(sent: Sent) -> str:
        plain = units.percent(sent.density)
        if sent.corrected is None:
            return plain
        return f"{plain} ({units.percent(sent.corrected)} with momentum correction)"

    return ", ".join(f"{kind} {said(sent)}" for kind, sent in found.items())


def tensor_rows(profile: Profile) -> list[tuple[str, ...]]:
    """Return the largest tensors, in ready order."""
    largest = sorted(profile.tensors, key=lambda t: -t.nbytes)[:LARGEST]
    chosen = {tensor.name for tensor in largest}
    return [
        (
            tensor.name,
            "x".join(map(str, tensor.shape)) or "scalar",
            units.nbytes(tensor.nbytes),
            units.seconds(tensor.ready_s),
        )
        for tensor in profile.tensors
        if tensor.name in chosen
    ]


def _contention(contention: Contention) -> str:
    """Return how fast backward's parts go on beside what the channel does."""
    parts = {"computation": contention, "compression": contention.compressing}
    one_rank = contention.world_size == 1
    return "; ".join(
        _rates(work, beside, one_rank)
        for work, beside in parts.items()
        if beside is not None
    )


def _rates(work: str, beside: PhaseRates, one_rank: bool) -> str:
    """Return how fast ``work`` goes on beside what the channel does.

    One rank sends nothing: of its profile only coding was measured.
    """
    kinds = {"coding": beside.codec}
    if not one_rank:
        kinds = {"messages": beside.startup, "bytes": beside.transfer} | kinds
    return f"{work} at " + ", ".join(
        f"{units.percent(rates.compute)} beside {what} (at "
        f"{units.percent(rates.channel)})"
        for what, rates in kinds.items()
    )


def _tensors_title(count: int) -> str:
    which = f"the {LARGEST} largest of {count} " if count > LARGEST else ""
    return f"{which}tensors, in ready order"


def _with_spread(value_s: float, spread: Spread | None) -> str:
    text = units.seconds(value_s)
    if spread is None:
        return text
    low, high = units.seconds(spread.p05_s), units.seconds(spread.p95_s)
    return f"{text}, 5 % to 95 %: {low} to {high}"


def _summary(title: str, rows: Sequence[Fact]) -> Table:
    table = Table(title=title, show_header=False)
    for row in rows:
        table.add_row(*row)
    return table


def _listing(
    title: str,
    header: Sequence[str],
    rows: Sequence[tuple[str, ...]],
    caption: str | None = None,
) -> Table:
    table = Table(title=title, caption=caption)
    for name in header:
        table.add_column(name)
    for row in rows:
        table.add_row(*row)
    return table
