"""The commands on the page of the papers' trainings are understood as they stand."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from comm_plan.cli import app
from comm_plan.runtime.learning_rate import LearningRate
from comm_plan.workloads import WORKLOADS

PAGE = Path(__file__).parent.parent / "docs" / "papers.md"
LINES = re.findall(r"^comm-plan (.*)$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_understood(line):
    verb, *words = shlex.split(line)
    command = get_command(app).commands[verb]
    values = command.make_context(verb, words, obj=[]).params
    assert values.get("workload", "lenet") in WORKLOADS
    LearningRate.parse(values.get("lr_schedule", "constant"))


def test_every_workload_with_published_data_is_on_the_page():
    trained = {words.split()[1] for words in LINES if words.startswith("compare ")}
    assert trained == {
        "lenet", "cifarnet", "resnet20", "vgg16", "vgg16-dropout", "lstm-ptb"
    }  # fmt: skip


def test_terngrad_compresses_every_layer_of_the_small_networks():
    """The paper leaves out the last one of large networks only (section 4.2)."""
    (line,) = [each for each in LINES if "--compressor terngrad" in each]
    words = shlex.split(line)
    assert words[words.index("--dense-layers") + 1] == ""
