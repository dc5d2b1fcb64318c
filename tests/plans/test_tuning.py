import os
from threading import Thread

import pytest
from pydantic import ValidationError

from comm_plan.errors import DocumentError
from comm_plan.plans import PlannedModel, Trial, Tuning, load_document


def tuning(winner="b"):
    return Tuning(
        workload="toy",
        model=PlannedModel(name="toy", fingerprint="sha256:0"),
        backend="gloo",
        world_size=2,
        budget_s=10.0,
        took_s=5.0,
        complete=True,
        winner=winner,
        advice="use b",
        trials=tuple(
            Trial(name=name, plan=f"{name}.json", lossless=True, predicted_s=1.0)
            for name in "ab"
        ),
    )


def test_is_read_as_it_was_written(tmp_path):
    written = tuning()
    written.save(tmp_path / "tuning.json")
    assert load_document(tmp_path / "tuning.json") == written


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_read_once(tmp_path):
    """As of ``comm-plan show <(ssh host cat tuning.json)``."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_text, args=[tuning().to_json()], daemon=True)
    writer.start()
    assert load_document(pipe) == tuning()
    writer.join()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"schema": "comm-plan/plans"}', "'comm-plan/plans' is none of .*/plan, "),
        ('{"version": 1}', "has no schema"),
    ],
)
def test_what_is_no_kind_of_document_is_refused(tmp_path, text, problem):
    path = tmp_path / "what.json"
    path.write_text(text)
    with pytest.raises(DocumentError, match=problem):
        load_document(path)


def test_finds_a_trial():
    assert tuning().trial("a").plan == "a.json"


def test_refuses_a_winner_that_was_not_tried():
    with pytest.raises(ValidationError, match="none of the trials"):
        tuning(winner="c")
