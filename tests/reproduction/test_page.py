"""Claims about the page of the papers."""

from pathlib import Path

from comm_plan.reproduction.page import page
from comm_plan.reproduction.values import Comparison, side_by_side

PAGE = Path(__file__).parents[2] / "docs" / "reproduction.md"


def test_the_page_is_current():
    assert PAGE.read_text() == page(), (
        "comm-plan reproduce --models-only -o docs/reproduction.md"
    )


def test_a_comparison_says_published_ours_and_their_ratio():
    row = side_by_side([Comparison("all of it", 2.0, 1.0, "s")]).rows[0]
    assert row == ("all of it", "2.00 s", "1.00 s", "0.50")
