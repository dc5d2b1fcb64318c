"""The share of the processors' time that went to other machines."""

from __future__ import annotations

import pytest

from comm_plan.profiler import stolen

FIRST = "cpu  100 0 50 800 10 0 5 20 7 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"


@pytest.mark.parametrize(
    ("second", "share"),
    [
        ("cpu  130 0 60 840 10 0 5 40 90 0\n", 0.2),  # time of guests is in user's
        ("cpu  100 0 50 800 10 0 5 20 7 0\n", 0.0),
        ("cpu  100 0 50 900 10 0 5 19 7 0\n", 0.0),  # it may be put right
    ],
)
def test_the_share_is_of_what_has_passed(monkeypatch, tmp_path, second, share):
    file = tmp_path / "stat"
    monkeypatch.setattr(stolen, "STAT", file)
    file.write_text(FIRST)
    passed = stolen.watch()
    file.write_text(second)
    assert passed() == pytest.approx(share)


@pytest.mark.parametrize("content", [None, "", "cpu  1 2 3 4\n"])
def test_a_system_that_does_not_tell_is_not_guessed(monkeypatch, tmp_path, content):
    file = tmp_path / "stat"
    monkeypatch.setattr(stolen, "STAT", file)
    if content is not None:
        file.write_text(content)
    assert stolen.watch()() is None
