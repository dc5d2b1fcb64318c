"""What the terminal shows while something runs."""

from contextlib import nullcontext

import pytest

from comm_plan import screen
from comm_plan.runtime.trainer import Event


def test_a_line_in_a_log_is_not_wrapped(capsys):
    line = f"wrote {'folder/' * 30}plan.json"
    screen.say(line)
    assert capsys.readouterr().err == f"{line}\n"


@pytest.mark.parametrize(
    ("message_nbytes", "said"),
    [
        (0, "epoch 1, loss 0.5000, 20.0 ms"),  # a step between two exchanges
        (2_000, "epoch 1, loss 0.5000, 20.0 ms, 2.00 kB (50.0x less)"),
        (100_000, "epoch 1, loss 0.5000, 20.0 ms"),
    ],
)
def test_a_step_says_how_much_less_it_sent_if_it_sent(
    monkeypatch, message_nbytes, said
):
    shown = []
    monkeypatch.setattr(
        screen, "progress", lambda: nullcontext(lambda *step: shown.append(step))
    )
    with screen.training_progress(10) as watch:
        watch(Event(1, 1, 0.5, 0.02, message_nbytes, 100_000, 0.0), None)
    assert shown == [(1, 10, said)]
