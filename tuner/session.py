"""The trials of one tuning: rounds by time, then, if it decides, trainings by loss."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from comm_plan.plans import Network, Profile, Trial, Tuning
from comm_plan.transports.base import Transport
from comm_plan.tuner import advice
from comm_plan.tuner.candidates import Candidates
from comm_plan.tuner.halving import ROUNDS, Halving
from comm_plan.tuner.judging import Judging
from comm_plan.tuner.ledger import Ledger
from comm_plan.tuner.options import Options
from comm_plan.tuner.trials import Block, Trials
from comm_plan.tuner.tuned import SETTING, Tuned
from comm_plan.workloads.base import Workload

ROUNDS_BY_LOSS = ROUNDS[:2]
"""Where the loss decides, less time goes into telling how fast the plans are."""

CONFIRMING = 0.1
"""The share of what is left that may tell whether a dense plan beats the baseline."""


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
        self._complete = False
        self._transport = transport
        self._options = options
        self._profile, self._network = profile, network
        self._not_tried = listed.not_tried
        self._started_s = started_s
        self._workload_name = workload.name
        here = {name: getattr(transport, name) for name in SETTING}
        self._ledger = Ledger(
            [replace(c, plan=c.plan.model_copy(update=here)) for c in listed.tried]
        )
        hosts = transport.gather_objects(socket.gethostname())
        self._hosts = tuple(dict.fromkeys(hosts))
        self._trials = Trials(
            workload,
            transport,
            options.seed,
            find_unused_parameters=options.find_unused_parameters,
        )
        self._judging = Judging(self._ledger, self._train, self._left_s, options)

    def steps(self) -> Iterator[None]:
        """Yield at once, and whenever more is known."""
        yield
        by_loss = self._options.objective == "loss"
        trials = self._ledger.trials()
        halving = self._halving({t.name: t.predicted_s for t in trials}, self._left_s)
        yield from self._ran(halving, ROUNDS_BY_LOSS if by_loss else ROUNDS)
        complete = halving.complete
        if by_loss and self._ledger.trials()[0].measured_s is not None:
            yield from self._confirmed()
            yield from self._judging.seeds()
            complete = complete and self._judging.complete
        self._complete = complete

    def result(self) -> Tuned:
        """Return what is known so far.

        Complete once all steps are done, if the budget sufficed for all of them.
        """
        trials = self._ledger.trials()
        winner, text = self._decided(trials)
        took_s = time.perf_counter() - self._started_s
        plans = self._ledger.plans
        tuning = Tuning(
            workload=self._workload_name,
            model=plans[winner].model,
            backend=self._transport.backend,
            world_size=self._transport.world_size,
            hosts=self._hosts,
            emulated_link=self._transport.emulated_link,
            objective=self._options.objective,
            budget_s=self._options.budget_s,
            took_s=took_s,
            complete=self._complete,
            winner=winner,
            advice=text,
            trials=tuple(trials),
            not_tried=self._not_tried,
        )
        correction = self._ledger.correction(
            self._profile, self._network, self._options.settings
        )
        return Tuned(tuning, plans, self._profile, self._network, correction)

    def _halving(
        self, expected_s: Mapping[str, float], left_s: Callable[[], float]
    ) -> Halving:
        round_steps = {n: plan.round_steps for n, plan in self._ledger.plans.items()}
        baseline = self._ledger.baseline
        return Halving(expected_s, baseline, self._measure, left_s, round_steps)

    def _ran(self, halving: Halving, wished: Sequence[int]) -> Iterator[None]:
        """Yield after each of ``wished`` rounds, whose results are kept."""
        for results in halving.rounds(wished):
            self._ledger.add_round(results)
            yield

    def _confirmed(self) -> Iterator[None]:
        """Yield after a longer round of the best dense plan beside the baseline.

        In rounds as short as those before it may be best by luck.
        """
        trials = self._ledger.trials()
        baseline, control = trials[0], advice.best_dense(trials)
        if control is baseline:
            return
        halving = self._halving(
            {t.name: t.measured_s or t.predicted_s for t in (baseline, control)},
            lambda: CONFIRMING * self._left_s(),
        )
        yield from self._ran(halving, ROUNDS[-1:])

    def _decided(self, trials: Sequence[Trial]) -> tuple[str, str]:
        """Return the name of the plan to run, and the advice.

        Where nothing was measured, no other plan takes the baseline's place; where the
        loss decides, no lossy one that it did not judge.
        """
        if self._judging.verdict is not None:
            return self._judging.verdict
        by_time = self._options.objective == "time"
        if trials[0].measured_s is None:
            eligible = [trial for trial in trials if by_time or trial.lossless]
            best = min(eligible, key=lambda trial: trial.predicted_s)
            which = "best" if by_time else "best of the dense plans"
            return trials[0].name, (
                "keep DDP's buckets: no trial ended within --budget "
                f"{self._options.budget_s:g}: give more; "
                f"{best.name} is predicted {which}"
            )
        if by_time:
            winner = advice.fastest(trials)
            return winner.name, advice.by_time(trials, winner)
        winner, text = advice.without_loss(trials, self._judging.unjudged)
        return winner.name, text

    def _measure(self, name: str, iterations: int) -> Block:
        return self._run(name, iterations, f"try {name}")

    def _train(self, name: str, steps: int, limit_s: float, seed: int) -> Block:
        return self._run(
            name,
            steps,
            f"loss of {name}, seed {seed}",
            warm_up=0,
            limit_s=limit_s,  # what the data decide may take longer than in the trials
            seed=seed,
        )

    def _run(self, name: str, iterations: int, what: str, **options: Any) -> Block:
        """Return a block of iterations by a plan, kept; ``what`` its progress is of."""
        block = self._trials.run(
            self._ledger.plans[name],
            iterations,
            done=lambda done, total: self._options.progress(done, total, what),
            **options,
        )
        self._ledger.add(name, block)
        return block

    def _left_s(self) -> float:
        used_s = time.perf_counter() - self._started_s
        agreed: float = self._transport.broadcast_object(
            self._options.usable_s - used_s
        )
        return agreed
