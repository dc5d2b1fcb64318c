"""What a tuning leaves: its evidence, the plans it tried, costs for the next time."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from comm_plan.errors import DocumentError, OutputError
from comm_plan.planner import BASELINES, Settings
from comm_plan.planner.correction import Correction
from comm_plan.planner.predict import predict
from comm_plan.plans import Network, Plan, Profile, Tuning
from comm_plan.plans.tuning import TUNED_FILE, TUNING_FILE

FILES = (
    *("profile.json", "network.json", "next-profile.json", "next-network.json"),
    *(TUNED_FILE, TUNING_FILE),
)
"""What is in the folder of every tuning, beside the plans that it tried."""

SETTING = ("backend", "emulated_link")
"""What plans and networks say of the ranks' transport."""


@dataclass(frozen=True)
class Tuned:
    """What a tuning leaves.

    Attributes:
        tuning: the evidence and the advice.
        plans: every plan that was tried, by its name.
        profile: what the plans were computed from.
        network: likewise.
        correction: what the trials say of both; None before any has run.
    """

    tuning: Tuning
    plans: dict[str, Plan]
    profile: Profile
    network: Network
    correction: Correction | None

    @cached_property
    def next_profile(self) -> Profile:
        """The profile as the trials corrected it."""
        if self.correction is None:
            return self.profile
        return self.correction.profile(self.profile)

    @cached_property
    def next_network(self) -> Network:
        """The network as the trials corrected it: theirs, whatever it was before."""
        network = self.network
        if self.correction is not None:
            network = self.correction.network(network)
        theirs = {name: getattr(self.tuning, name) for name in SETTING}
        return network.model_copy(update=theirs)

    @cached_property
    def plan(self) -> Plan:
        """The plan to run, and what it takes at the corrected costs."""
        winner = self.plans[self.tuning.winner]
        return predict(
            winner,
            self.next_profile,
            self.next_network,
            Settings.of(winner),
            beside=BASELINES,
        )

    def save(self, folder: Path) -> None:
        """Write everything into ``folder``, which exists.

        ``plan.json`` is the winner, ``next-profile.json`` and ``next-network.json`` the
        costs as the trials corrected them, by which it is predicted. The other plans
        are predicted by the costs that the tuning started from. Plans that only an
        earlier tuning into ``folder`` tried are removed.

        Raises:
            OutputError: a file cannot be written or removed.
        """
        _remove_earlier_plans(folder, {file_of(name) for name in self.plans})
        for name, plan in self.plans.items():
            plan.save(folder / file_of(name))
        measured = self.profile, self.network
        found = self.next_profile, self.next_network, self.plan, self.tuning
        for file, document in zip(FILES, (*measured, *found), strict=True):
            document.save(folder / file)


def file_of(name: str) -> str:
    """Return the file of the plan called ``name``."""
    return f"plan-{re.sub('[^a-z0-9]+', '-', name.lower())}.json"


def _remove_earlier_plans(folder: Path, kept: Collection[str]) -> None:
    """Remove the plans that the tuning in ``folder`` tried, if there is one.

    Args:
        folder: where it wrote them.
        kept: names of files that stay.

    Raises:
        OutputError: a file cannot be removed.
    """
    try:
        earlier = Tuning.load(folder / TUNING_FILE)
    except DocumentError:
        return
    tried = {trial.plan for trial in earlier.trials}
    for path in folder.glob("plan-*.json"):
        if path.name in tried and path.name not in kept:
            _remove(path)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"{path}: cannot be removed: {error.strerror}") from None
