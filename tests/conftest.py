"""What all tests share: Hypothesis' settings and the small documents."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

from comm_plan.report.timeline import Timeline
from comm_plan.tests.support import documents
from comm_plan.tests.support import timelines as drawn
from comm_plan.tests.support.command import Command

# How long an example takes says how busy the machine is, not whether it is right.
settings.register_profile(
    "comm-plan", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("comm-plan")


@pytest.fixture(scope="session")
def build() -> ModuleType:
    """The builders of profiles and networks."""
    return documents


@pytest.fixture
def timelines() -> list[Timeline]:
    """A merged timeline and a compressed one."""
    return [drawn.merged(), drawn.compressed()]


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command line in this process."""
    return Command(monkeypatch, capsys)
