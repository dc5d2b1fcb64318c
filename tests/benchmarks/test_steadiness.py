"""What a machine's past tells of its future, as it is counted."""

import sys

import pytest

from comm_plan.benchmarks.steadiness import (
    FOLLOWING,
    STRETCH,
    WAYS,
    errors,
    main,
    measured,
    shares,
)

WHOLE = STRETCH + FOLLOWING


@pytest.mark.parametrize("windows", WAYS.values(), ids=WAYS)
def test_a_steady_machine_tells_all(windows):
    assert shares(errors([0.01] * (WHOLE + 50), windows)) == [0, 0, 0]


@pytest.mark.parametrize("windows", WAYS.values(), ids=WAYS)
def test_a_machine_that_gets_slower_is_found_out(windows):
    """The first question sees the fast stretch only, and the slow minute."""
    off = errors([0.01] * STRETCH + [0.0125] * (FOLLOWING + 1), windows)
    assert off.tolist() == pytest.approx([-0.2])


@pytest.mark.parametrize("windows", WAYS.values(), ids=WAYS)
def test_windows_lie_within_the_stretch(windows):
    assert windows == sorted(set(windows))
    assert windows[0] == 0 and windows[-1] == STRETCH - 1


def test_iterations_are_timed_by_the_tick():
    (only,) = measured(0.1)
    assert 0 < only < 10


def test_too_short_a_time_is_refused_before_it_is_spent(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["steadiness", "--minutes", "1"])
    with pytest.raises(SystemExit):
        main()
    assert "--minutes 1: at least 3" in capsys.readouterr().err
