"""The trials of one tuning: rounds by time, then, if it decides, trainings by loss."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from comm_plan import units
from comm_plan.planner import Settings
from comm_plan.planner.correction import Correction
from comm_plan.planner.observed import Seen, correction
from comm_plan.plans import Curve, Network, Profile, Round, Trial, Tuning
from comm_plan.plans.tuning import Objective
from comm_plan.transports.base import Transport
from comm_plan.tuner import advice, loss
from comm_plan.tuner.candidates import Candidates
from comm_plan.tuner.defaults import BUDGET_S, SEEDS
from comm_plan.tuner.halving import ROUNDS, Halving
from comm_plan.tuner.measuring import Progress
from comm_plan.tuner.trials import Block, Trials, Watcher
from comm_plan.tuner.tuned import SETTING, Tuned, file_of
from comm_plan.workloads.base import Workload

JUDGED = 4
"""Lossy plans that are judged by loss at most: the fastest, and gentler ones."""

WORTH_JUDGING = 0.9
"""A lossy plan must take less of the dense plan's time to be judged by loss."""

ROUNDS_BY_LOSS = ROUNDS[:2]
"""Where the loss decides, less time goes into telling how fast the plans are."""

CONFIRMING = 0.1
"""The share of what is left that may tell whether a dense plan beats the baseline."""

FEWEST_STEPS = 20
"""A training of fewer iterations says nothing of the loss."""

RESERVE = 0.05
"""The share of the budget that is kept for what no estimate counts."""

BELIEVED = 0.5
"""Profile and benchmark were measured some minutes before the trials. Machines drift,
so neither is nearer to the next minutes: both count alike."""


@dataclass(frozen=True)
class Options:
    """How to tune.

    Attributes:
        budget_s: seconds that all of it may take.
        objective: ``time``: the shortest iteration; ``loss``: the loss falls fastest.
        seeds: how many trainings of each plan are judged by loss.
        seed: the first of them; of the data in the other trials.
        settings: what plans may be.
        local_steps: how many of them to try, if the loss decides.
        profile: of the workload, measured before; None: measure it.
        network: of the ranks, measured before; None: measure it.
        find_unused_parameters: parameters may get no gradient.
        progress: called with what is done, of how much, and what is going on.
    """

    budget_s: float = BUDGET_S
    objective: Objective = "time"
    seeds: int = SEEDS
    seed: int = 0
    settings: Settings = field(default_factory=Settings)
    local_steps: Sequence[int] = ()
    profile: Profile | None = None
    network: Network | None = None
    find_unused_parameters: bool = False
    progress: Progress = lambda done, total, what: None


class Session:
    """The trials of one tuning; every rank makes the same calls.

    Args:
        workload: its model is left as it was, on the transport's device.
        transport: the ranks.
        options: how to tune.
        profile: what the plans were computed from.
        network: likewise.
        listed: the plans to try.
        started_s: when the tuning began, by ``time.perf_counter``.

    Attributes:
        complete: whether the budget sufficed for all that was to be tried.
    """

    def __init__(
        self,
        workload: Workload,
        transport: Transport,
        options: Options,
        profile: Profile,
        network: Network,
        listed: Candidates,
        started_s: float,
    ) -> None:
        self.complete = False
        self._transport = transport
        self._options = options
        self._profile, self._network = profile, network
        self._listed = listed
        self._started_s = started_s
        self._workload = workload
        here = {name: getattr(transport, name) for name in SETTING}
        self._plans = {c.name: c.plan.model_copy(update=here) for c in listed.tried}
        hosts = transport.gather_objects(socket.gethostname())
        self._hosts = tuple(dict.fromkeys(hosts))
        self._expected_s = {c.name: c.predicted_s for c in listed.tried}
        self._trials = Trials(
            workload,
            transport,
            options.seed,
            find_unused_parameters=options.find_unused_parameters,
        )
        self._rounds: dict[str, list[Round]] = {name: [] for name in self._plans}
        self._curves: dict[str, list[Curve]] = {name: [] for name in self._plans}
        self._blocks: dict[str, list[Block]] = {name: [] for name in self._plans}
        self._verdict: tuple[str, str] | None = None
        self._unjudged = "lossy plans are not judged by loss yet"

    def steps(self) -> Iterator[None]:
        """Yield whenever more is known."""
        yield from self._by_time()
        if self._options.objective == "loss":
            yield from self._confirmed()
            yield from self._by_loss()

    def _by_time(self) -> Iterator[None]:
        """Yield after each round of trials."""
        halving = self._halving(self._expected_s, self._left_s)
        by_time = self._options.objective == "time"
        yield from self._ran(halving, ROUNDS if by_time else ROUNDS_BY_LOSS)
        self.complete = halving.complete

    def _halving(
        self, expected_s: Mapping[str, float], left_s: Callable[[], float]
    ) -> Halving:
        round_steps = {name: plan.round_steps for name, plan in self._plans.items()}
        return Halving(expected_s, self._baseline, self._measure, left_s, round_steps)

    def _ran(self, halving: Halving, wished: Sequence[int]) -> Iterator[None]:
        """Yield after each of ``wished`` rounds, whose results are kept."""
        for results in halving.rounds(wished):
            for name, result in results.items():
                self._rounds[name].append(result)
            yield

    def _confirmed(self) -> Iterator[None]:
        """Yield after a longer round of the best dense plan beside the baseline.

        In rounds as short as those before it may be best by luck.
        """
        trials = self._tried()
        if trials[0].measured_s is None:
            return
        baseline, control = trials[0], advice.best_dense(trials)
        if control is baseline:
            return
        halving = self._halving(
            {t.name: t.measured_s or t.predicted_s for t in (baseline, control)},
            lambda: CONFIRMING * self._left_s(),
        )
        yield from self._ran(halving, ROUNDS[-1:])

    def _by_loss(self) -> Iterator[None]:
        """Yield after each seed: the fastest lossy plans trained beside a dense one.

        They train in one order and then in the other, as machines drift.
        """
        trials = self._tried()
        if trials[0].measured_s is None:
            return
        control = advice.best_dense(trials)
        lossy = self._worth_judging(trials, control)
        if not lossy:
            self._judge(control, lossy)
            return
        asked = len(lossy), self._options.seeds
        lossy, seeds = self._affordable(control, lossy)
        self.complete = self.complete and (len(lossy), seeds) == asked
        judged = [control, *lossy]
        for number in range(seeds):
            each_s = self._each_s(judged, seeds - number, self._left_s())
            if _fewest_steps(judged, each_s) < FEWEST_STEPS:
                self.complete = False
                return
            seed = self._options.seed + number
            window = loss.window_of(_steps(control, each_s))
            for trial in reversed(judged) if number % 2 else judged:
                self._train(trial, each_s, seed, window)
            self._judge(control, lossy)
            yield

    def _affordable(
        self, control: Trial, lossy: Sequence[Trial]
    ) -> tuple[list[Trial], int]:
        """Return which plans what is left suffices to judge, and for how many seeds.

        As many trainings as can be; of equally many those of more seeds.
        """
        left_s = self._left_s()
        choices = product(range(1, len(lossy) + 1), range(1, self._options.seeds + 1))
        most_first = sorted(choices, key=lambda c: (c[0] * c[1], c[1]), reverse=True)
        for plans, seeds in most_first:
            some = _spread(lossy, plans)
            each_s = self._each_s([control, *some], seeds, left_s)
            if _fewest_steps([control, *some], each_s) >= FEWEST_STEPS:
                return some, seeds
        short_s = self._judging_s([control, lossy[0]], FEWEST_STEPS) - left_s
        enough_s = self._options.budget_s + short_s / (1 - RESERVE)
        self._unjudged = (
            "--budget is too short to judge lossy plans by loss: with "
            f"{units.seconds(enough_s)} one could be, for one seed"
        )
        return [], 0

    def _judge(self, control: Trial, lossy: Sequence[Trial]) -> None:
        """Decide by the trainings so far, of which all plans have the same seeds."""
        dense = self._curves[control.name]
        seeds = sum(map(loss.stayed_finite, dense))
        if lossy and not seeds:
            self._unjudged = (
                f"the loss of {control.name} does not stay finite: no lossy plan can "
                "be held against it"
            )
            return
        speed_ups = loss.judge(dense, {t.name: self._curves[t.name] for t in lossy})
        winner, text = advice.by_loss(self._tried(), control, speed_ups, seeds)
        self._verdict = (winner.name, text)

    def _worth_judging(self, trials: Sequence[Trial], control: Trial) -> list[Trial]:
        """Return the fastest lossy plan and gentler ones, each faster than the next.

        Args:
            trials: all.
            control: the dense one that they would be held against.
        """
        measured = [trial for trial in trials if trial.measured_s is not None]
        measured.sort(key=lambda trial: trial.measured_s or 0.0)
        ratio = {c.name: c.ratio for c in self._listed.tried}
        limit_s = WORTH_JUDGING * (control.measured_s or 0.0)
        front: list[Trial] = []
        for trial in measured:
            gentler = not front or ratio[trial.name] < ratio[front[-1].name]
            if not trial.lossless and gentler and (trial.measured_s or 0.0) < limit_s:
                front.append(trial)
        return _spread(front, min(JUDGED, len(front)))

    def result(self, complete: bool) -> Tuned:
        """Return what is known so far."""
        trials = self._tried()
        winner, text = self._decided(trials)
        took_s = time.perf_counter() - self._started_s
        tuning = Tuning(
            workload=self._workload.name,
            model=self._plans[winner].model,
            backend=self._transport.backend,
            world_size=self._transport.world_size,
            hosts=self._hosts,
            emulated_link=self._transport.emulated_link,
            objective=self._options.objective,
            budget_s=self._options.budget_s,
            took_s=took_s,
            complete=complete,
            winner=winner,
            advice=text,
            trials=tuple(trials),
            not_tried=self._listed.not_tried,
        )
        return Tuned(
            tuning,
            self._plans,
            self._profile,
            self._network,
            correction=self._correction(),
        )

    def _decided(self, trials: Sequence[Trial]) -> tuple[str, str]:
        """Return the name of the plan to run, and the advice.

        Where the loss decides, a lossy plan is not run before it was judged.
        """
        if self._verdict is not None:
            return self._verdict
        by_time = self._options.objective == "time"
        if trials[0].measured_s is None:
            eligible = [trial for trial in trials if by_time or trial.lossless]
            best = min(eligible, key=lambda trial: trial.predicted_s)
            which = "best" if by_time else "best of the dense plans"
            return best.name, (
                f"--budget {self._options.budget_s:g} leaves no time for a trial, "
                f"nothing was measured: give more; {best.name} is predicted {which}"
            )
        if by_time:
            winner = advice.fastest(trials)
            return winner.name, advice.by_time(trials, winner)
        winner, text = advice.without_loss(trials, self._unjudged)
        return winner.name, text

    def _correction(self) -> Correction | None:
        """Return what all trials show; None before any has run."""
        seen = []
        for name, blocks in self._blocks.items():
            timings = [block.timing for block in blocks if block.timing is not None]
            if timings:
                iterations_s = [float(np.median(block.seconds)) for block in blocks]
                seen.append(Seen.median(self._plans[name], timings, iterations_s))
        if not seen:
            return None
        settings = self._options.settings
        told = correction(seen, self._profile, self._network, settings)
        return told.partly(BELIEVED)

    @property
    def _baseline(self) -> str:
        return self._listed.tried[0].name

    def _tried(self) -> list[Trial]:
        return [
            Trial(
                name=candidate.name,
                plan=file_of(candidate.name),
                lossless=candidate.plan.is_exact,
                local=candidate.local,
                predicted_s=candidate.predicted_s,
                rounds=tuple(self._rounds[candidate.name]),
                measured_s=self._measured_s(candidate.name),
                curves=tuple(self._curves[candidate.name]),
            )
            for candidate in self._listed.tried
        ]

    def _measured_s(self, name: str) -> float | None:
        """Return what a plan took in all its rounds, by the clock of all rounds.

        A plan that left after some round is compared with the baseline of the rounds
        that it was in, as the machine may have changed since.
        """
        rounds = len(self._rounds[name])
        if not rounds:
            return None
        then_s = self._median_s(self._baseline, rounds)
        always_s = self._median_s(self._baseline)
        return self._median_s(name) * (always_s / then_s)

    def _median_s(self, name: str, rounds: int | None = None) -> float:
        """Return what a plan took in its first ``rounds``; None: in all."""
        iterations = sum(round_.iterations for round_ in self._rounds[name][:rounds])
        seconds = np.concatenate([block.seconds for block in self._blocks[name]])
        return float(np.median(seconds[:iterations]))

    def _measure(self, name: str, iterations: int) -> Block:
        block = self._trials.run(
            self._plans[name],
            iterations,
            done=self._shown(f"try {name}"),
        )
        self._blocks[name].append(block)
        return block

    def _train(self, trial: Trial, seconds: float, seed: int, window: int) -> None:
        block = self._trials.run(
            self._plans[trial.name],
            _steps(trial, seconds),
            warm_up=0,
            limit_s=seconds,  # what the data decide may take longer than in the trials
            seed=seed,
            done=self._shown(f"loss of {trial.name}, seed {seed}"),
        )
        self._blocks[trial.name].append(block)
        curve = loss.curve(seed, block.seconds, block.losses, window)
        self._curves[trial.name].append(curve)

    def _shown(self, what: str) -> Watcher:
        """Return what shows the progress of ``what``."""
        return lambda done, total: self._options.progress(done, total, what)

    def _each_s(self, judged: Sequence[Trial], seeds: int, left_s: float) -> float:
        """Return for how many seconds each plan may train.

        Args:
            judged: the plans.
            seeds: for how many seeds.
            left_s: how long it may take in all.
        """
        return (left_s / seeds - self._overheads_s(judged)) / len(judged)

    def _judging_s(self, judged: Sequence[Trial], steps: int) -> float:
        """Return what one seed takes in which the slowest plan makes so many steps."""
        slowest_s = max(trial.measured_s or 0.0 for trial in judged)
        return self._overheads_s(judged) + len(judged) * steps * slowest_s

    def _overheads_s(self, judged: Sequence[Trial]) -> float:
        """Return what trainings take besides, as each plan's last block did."""
        return sum(self._blocks[trial.name][-1].overhead_s for trial in judged)

    def _left_s(self) -> float:
        used_s = time.perf_counter() - self._started_s
        left_s = (1 - RESERVE) * self._options.budget_s - used_s
        agreed: float = self._transport.broadcast_object(left_s)
        return agreed


def _steps(trial: Trial, seconds: float) -> int:
    """Return how many steps a plan makes in so many seconds."""
    return int(seconds / (trial.measured_s or math.inf))


def _fewest_steps(trials: Sequence[Trial], seconds: float) -> int:
    return min(_steps(trial, seconds) for trial in trials)


def _spread(trials: Sequence[Trial], count: int) -> list[Trial]:
    """Return so many of ``trials``, in order: the first, the last, some in between."""
    places = np.linspace(0, len(trials) - 1, count)
    return [trials[round(place)] for place in places.tolist()]
