import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from comm_plan.report.terminal import TerminalTimelines


def render(timelines, width, **options):
    console = Console(width=width, file=io.StringIO(), **options)
    console.print(TerminalTimelines(timelines))
    return console.file.getvalue()


def plain(timelines, width):
    return render(timelines, width, color_system=None)


def colored(timelines, width):
    return render(timelines, width, force_terminal=True, color_system="truecolor")


@pytest.mark.parametrize("width", [20, 40, 80, 133])
def test_no_line_is_wider_than_the_terminal(timelines, width):
    for line in plain(timelines, width).splitlines():
        assert cell_len(line) <= width


def test_bars_are_to_scale(timelines):
    lines = plain(timelines, 88).splitlines()
    assert lines[1] == "compute " + "f" * 20 + "b" * 40 + " " * 12 + "u" * 8
    network = " " * 40 + "m" * 8 + "M" * 12 + "X" * 12
    assert lines[2].rstrip() == "network " + network


def test_headings_name_the_plan_its_time_and_what_is_exposed(timelines):
    text = plain(timelines, 100)
    assert "optimal  40.0 ms an iteration, 6.00 ms exposed (15.0 %)" in text
    assert "auto & <more>" in text


def test_without_colors_the_output_is_plain_ascii(timelines):
    assert plain(timelines, 80).isascii()


def test_legend_explains_what_is_drawn_and_no_more(timelines):
    assert "m communication" in plain(timelines, 120)
    assert "decompression" not in plain(timelines[:1], 120)
    assert "exposed" in plain(timelines[:1], 120).splitlines()[-1]


def test_colors_tell_lanes_apart(timelines):
    text = colored(timelines, 80)
    assert "38;2;86;180;233m" in text  # forward
    assert "38;2;230;159;0m" in text  # communication
    assert "▒" in text  # exposed


def test_axis_shows_round_times(timelines):
    (axis,) = (
        line for line in plain(timelines, 88).splitlines() if "0 s" in line.split("  ")
    )
    assert axis.split() == ["0", "s", "10", "ms", "20", "ms", "30", "ms", "40", "ms"]
    assert axis.index("20 ms") + len("20 ms") == 8 + 40
