"""A plan that follows the network: measure while training, solve again, swap.

Every :data:`~comm_plan.runtime.drift.WINDOW` steps the ranks share when their buckets
travelled, and time two all-reduces: of one element, and of so many that they show the
bandwidth, for which compressed messages may be too short. If something takes longer
than expected, or less long, for some windows in a row, rank 0 corrects the costs and
solves again, on a thread of its own while training goes on. At the end of a later
window all ranks swap the plan together, if by the corrected costs the new one is enough
faster, or about as fast and leaves out enough less; if not, the corrected costs are
what is expected from then on, and what they leave unexplained. So each change of the
network is answered once. Steps in which a warm-up of densities lets more be sent than
the plan says are not looked at.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

import torch

from comm_plan import units
from comm_plan.errors import InputError, MismatchError
from comm_plan.planner import Settings, replan
from comm_plan.planner.collective_cost import collective_curve
from comm_plan.planner.correction import Correction
from comm_plan.planner.observed import Probe, Seen, correction
from comm_plan.planner.predict import predict
from comm_plan.plans import Bucket, Following, Network, Plan, Profile, Replan, Timing
from comm_plan.runtime.agreement import check_settings
from comm_plan.runtime.drift import WINDOW, Drift, of_all_ranks
from comm_plan.runtime.engine import Engine
from comm_plan.runtime.second_moments.choice import needed
from comm_plan.runtime.timing import StepSeconds, median_timing
from comm_plan.transports.elapsed import elapsed_s

WORTH = 0.05
"""A faster plan must save this share of the iteration, or the old one stays."""

GENTLER = 1.5
"""A plan that is about as fast, by what ``tolerance`` and ``min_gain`` allow, must send
so much more of the gradients, or the old stays."""

PROBES = 3
"""All-reduces of each size that are timed at the end of a window."""

PROBE_NBYTES = (2**14, 2**20)
"""The least and the most bytes of those that are to show the bandwidth."""

AS_EXPECTED = (1.0, 1.0, 1.0)
"""What is observed where all takes as long as expected."""

logger = logging.getLogger("comm_plan")

SETTLING = 2
"""First steps under a plan, which are not looked at: allocations, first touches."""


@dataclass(frozen=True)
class _Proposal:
    """What rank 0 found: corrected costs, and the plan that they ask for.

    ``expected_s``: an iteration by the plan in execution, at the corrected costs.
    ``left``: what was observed of it, over what these expect.
    """

    profile: Profile
    network: Network
    expected_s: float
    left: tuple[float, ...]
    plan: Plan
    reason: str


class Adaptation:
    """Watches an engine, and swaps its plan when the run is not as predicted.

    Every rank makes one for its engine, and calls :meth:`close` at the end. New plans
    come from the same solver; ``engine.replans`` says when and why, and
    ``engine.following`` how often the plan was looked at.

    Args:
        engine: its plan must have been solved from these documents.
        profile: of the model.
        network: of the ranks.

    Raises:
        MismatchError: the plan is for another model than the profile, or ranks have
            other documents.
        InputError: a cost that the plan needs was not measured, it has local steps, or
            its second moments come from parts of each batch.
    """

    def __init__(
        self,
        engine: Engine,
        profile: Profile,
        network: Network,
    ) -> None:
        if engine.plan.local_steps is not None:
            raise InputError(
                "adapt: a plan with local steps exchanges so rarely that nothing can "
                "be seen in time: tune again instead"
            )
        if engine.cuts_batches:
            raise InputError(
                "adapt: second moments come from parts of each batch, so that what "
                "computation and compression take cannot be told apart: tune again "
                "instead"
            )
        given = {"the profile": profile, "the network": network}
        check_settings(
            {name: document.sha256[:12] for name, document in given.items()},
            engine.transport,
        )
        self._engine = engine
        self._profile, self._network = profile, network
        balanced = _balanced_numel(profile, network, engine.transport.world_size)
        self._probed = [
            torch.zeros(numel, dtype=torch.float32, device=engine.transport.device)
            for numel in (1, balanced)
        ]
        self._expected_s = _predicted_s(self._predicted(profile, network))
        self._drift = Drift()
        self._left: tuple[float, ...] = AS_EXPECTED
        self._answered: tuple[float, ...] = AS_EXPECTED
        self._steps = 0
        self._window: list[StepSeconds] = []
        self._settling = SETTLING
        self._solving: Future[_Proposal] | None = None
        engine.between_steps(self._after_step)
        engine.following = Following()

    def close(self) -> None:
        """Stop watching; what is being solved is for nobody, and not waited for."""
        self._engine.between_steps(None)

    def _after_step(self) -> None:
        if self._warms_up():
            return
        if self._settling:
            self._settling -= 1
            return
        self._steps += 1
        moments = self._engine.last_moments
        seconds = None if moments is None else moments.seconds()
        if seconds is not None:
            self._window.append(seconds)
        if self._steps == WINDOW:  # of all ranks, whatever each of them has seen
            self._end_window()

    def _warms_up(self) -> bool:
        """Return whether sparse methods send more than the plan says: by a warm-up."""
        return any(
            (floor := bucket.compressor.density_floor)
            and floor > min(bucket.planned.densities)
            for bucket in self._engine.buckets
        )

    def _end_window(self) -> None:
        seen = median_timing(self._window), self._time_probes()
        self._steps, self._window = 0, []
        ranks = self._engine.transport
        every_rank = ranks.gather_objects(seen)
        proposal = None
        if ranks.rank == 0:
            proposal = self._proposed()
            if proposal is None and self._solving is None:
                timings, probes_s = zip(*every_rank, strict=True)
                if None not in timings:
                    least_s = map(min, zip(*probes_s, strict=True))
                    self._observe(of_all_ranks(timings), list(least_s))
        agreed: _Proposal | None = ranks.broadcast_object(proposal)
        stays = agreed is not None and not self._take(agreed)
        before = self._engine.following or Following()
        self._engine.following = Following(
            windows=before.windows + 1, kept=before.kept + stays
        )

    def _time_probes(self) -> list[float]:
        """Return the least seconds of some all-reduces of each size."""
        ranks = self._engine.transport
        return [
            min(
                elapsed_s(ranks, partial(ranks.all_reduce, probed))
                for _ in range(PROBES)
            )
            for probed in self._probed
        ]

    def _observe(self, timing: Timing, probes_s: Sequence[float]) -> None:
        """Begin to solve again if a drift has lasted (rank 0)."""
        each = zip(self._probed, probes_s, strict=True)
        probes = [Probe(probed.nbytes, seconds) for probed, seconds in each]
        seen = Seen(self._engine.plan, timing)
        changed = self._correction(seen, probes, self._profile, self._network)
        both = zip(changed.observed, self._left, strict=True)
        if not self._drift.outlasts([factor / left for factor, left in both]):
            return
        self._drift.forget()
        self._answered = changed.observed
        self._solving = _beside(partial(self._propose, seen, probes, changed))

    def _correction(
        self, seen: Seen, probes: list[Probe], profile: Profile, network: Network
    ) -> Correction:
        return correction([seen], profile, network, self._settings, probes)

    def _propose(
        self, seen: Seen, probes: list[Probe], changed: Correction
    ) -> _Proposal:
        profile = changed.profile(self._profile)
        network = changed.network(self._network)
        ranks = self._engine.transport.world_size
        plan = replan(self._engine.plan, profile, network, ranks)
        if needed(plan) and not needed(self._engine.plan):
            raise InputError(
                f"{plan.solver} wants second moments now, which this run does not take"
            )
        return _Proposal(
            profile=profile,
            network=network,
            expected_s=_predicted_s(self._predicted(profile, network)),
            left=self._correction(seen, probes, profile, network).observed,
            plan=plan,
            reason=_reason(changed),
        )

    @property
    def _settings(self) -> Settings:
        """What the plan in execution costs is asked with."""
        plan = self._engine.plan
        ranks = self._engine.transport.world_size
        return replace(Settings.of(plan), world_size=ranks)

    def _predicted(self, profile: Profile, network: Network) -> Plan:
        return predict(self._engine.plan, profile, network, self._settings)

    def _is_worth(self, plan: Plan, share: float) -> bool:
        """Return whether to swap to ``plan``, which takes ``share`` of the time."""
        if share <= 1 - WORTH:
            return True
        more = _sent(plan, self._profile) / _sent(self._engine.plan, self._profile)
        asked = self._settings
        enough = max(1 + asked.tolerance, 1 / (1 - asked.min_gain))
        return share <= enough and more >= GENTLER

    def _proposed(self) -> _Proposal | None:
        """Return what has been solved meanwhile (rank 0)."""
        if self._solving is None or not self._solving.done():
            return None
        solved, self._solving = self._solving, None
        try:
            return solved.result()
        except (InputError, MismatchError) as error:
            logger.warning("adapt: no plan at the costs of now, this stays: %s", error)
            self._left = self._answered
            return None

    def _take(self, proposal: _Proposal) -> bool:
        """Expect the corrected costs from now on; swap the plan if it is worth it.

        Returns:
            Whether it was.
        """
        self._profile, self._network = proposal.profile, proposal.network
        self._left = proposal.left
        expected_s, self._expected_s = self._expected_s, proposal.expected_s
        new_s = _predicted_s(proposal.plan)
        if not self._is_worth(proposal.plan, new_s / proposal.expected_s):
            return False
        change = Replan(
            step=self._engine.step,
            reason=proposal.reason,
            plan_sha256=proposal.plan.sha256,
            expected_s=expected_s,
            corrected_s=proposal.expected_s,
            predicted_s=new_s,
        )
        try:
            self._engine.swap(proposal.plan, change)
        except (InputError, MismatchError) as error:
            logger.warning("adapt: this run cannot go on by the new plan: %s", error)
            return False
        self._expected_s = new_s
        self._left = AS_EXPECTED
        self._settling = SETTLING
        return True


def _beside(propose: Callable[[], _Proposal]) -> Future[_Proposal]:
    """Run ``propose`` on a thread that does not keep the process from ending."""
    solving: Future[_Proposal] = Future()

    def run() -> None:
        try:
            solving.set_result(propose())
        except BaseException as error:
            solving.set_exception(error)

    threading.Thread(target=run, name="comm-plan-adapt", daemon=True).start()
    return solving


def _sent(plan: Plan, profile: Profile) -> float:
    """Return how much of the gradients ``plan`` sends, in whole elements."""
    numel = {tensor.name: tensor.numel for tensor in profile.tensors}

    def sent(bucket: Bucket) -> float:
        spec, numels = bucket.compressor, [numel[name] for name in bucket.tensors]
        if not spec.selects_by_tensor:
            return sum(numels) / spec.ratio
        each = zip(numels, bucket.densities, strict=True)
        return sum(n * density for n, density in each)

    return sum(map(sent, plan.buckets))


def _predicted_s(plan: Plan) -> float:
    assert plan.predicted is not None
    return plan.predicted.iteration_s


def _balanced_numel(profile: Profile, network: Network, world_size: int) -> int:
    """Return the elements whose all-reduce is half latency, as was expected at first.

    Between :data:`PROBE_NBYTES`, and no longer than the model.
    """
    curve = collective_curve(network, "allreduce", world_size)
    alpha_s, beta = curve.line(PROBE_NBYTES[0], PROBE_NBYTES[1])
    balanced = alpha_s / beta if beta else 0.0
    nbytes = min(max(balanced, PROBE_NBYTES[0]), PROBE_NBYTES[1], profile.nbytes)
    return max(1, int(nbytes) // 4)


def _reason(changed: Correction) -> str:
    computation, _, _ = changed.observed
    factors = {
        "backward": computation,
        "a message": changed.latency,
        "a byte": changed.per_byte,
        **{f"coding {kind}": factor for kind, factor in changed.coding.items()},
    }
    return ", ".join(
        f"{what} takes {units.times(factor)} as long as expected"
        for what, factor in factors.items()
    )


def adapt(
    engine: Engine,
    profile: Profile | str,
    network: Network | str,
) -> Adaptation:
    """Let the plan of ``engine`` follow the network from now on.

    The training loop stays as it is; every rank calls this::

        engine = comm_plan.parallelize(model, "plan.json")
        adaptation = comm_plan.adapt(engine, "profile.json", "network.json")

    Args:
        engine: its plan must have been solved from these documents.
        profile: of the model, or its path.
        network: of the ranks, or its path.

    Raises:
        DocumentError: a document cannot be read.
        MismatchError: the plan is for another model than the profile, was solved from
            other documents, or ranks have others.
        InputError: a cost that the plan needs was not measured.
    """
    if not isinstance(profile, Profile):
        profile = Profile.load(profile)
    if not isinstance(network, Network):
        network = Network.load(network)
    inputs = engine.plan.inputs
    for document, stated in (
        (profile, inputs and inputs.profile_sha256),
        (network, inputs and inputs.network_sha256),
    ):
        if stated is not None and document.sha256 != stated:
            raise MismatchError(
                f"the plan was solved from another {document.SCHEMA.split('/')[1]}: "
                "give the one that it was solved from, or solve again"
            )
    return Adaptation(engine, profile, network)
