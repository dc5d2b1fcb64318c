"""The documentation's table of semantics says what the tests show."""

import ast
from pathlib import Path

import pytest

from comm_plan.tests.runtime.ddp_oracle import CASES
from comm_plan.tests.runtime.semantics import DIFFERENCES, PAGE, SAME, page

HERE = Path(__file__).parent


def test_every_scenario_is_in_the_table():
    assert set(SAME) == set(CASES)


@pytest.mark.parametrize("test", [each.test for each in DIFFERENCES])
def test_every_difference_is_shown_by_a_test(test):
    file, _, name = test.partition("::")
    tree = ast.parse((HERE / file).read_text())
    assert name in {d.name for d in tree.body if isinstance(d, ast.FunctionDef)}


def test_the_page_is_that_of_the_table():
    assert PAGE.read_text() == page(), "run make tables"
