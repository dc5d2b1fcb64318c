import struct
import sys
from dataclasses import replace

import pytest

from comm_plan.errors import InputError, OutputError
from comm_plan.report.png import DPI, WIDTH_INCHES, png
from comm_plan.report.save import save


def size(picture):
    """Return width and height from the header of a PNG file."""
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", picture[16:24])


@pytest.fixture
def _matplotlib():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")


@pytest.mark.usefixtures("_matplotlib")
def test_picture_grows_by_plan_and_keeps_its_width(timelines):
    one, two = size(png(timelines[:1], "one")), size(png(timelines, "two"))
    assert one[0] == two[0] == WIDTH_INCHES * DPI
    assert two[1] > one[1]


@pytest.mark.usefixtures("_matplotlib")
def test_same_timelines_give_the_same_file(timelines, tmp_path):
    save(timelines, tmp_path / "a.png", "title")
    assert (tmp_path / "a.png").read_bytes() == png(timelines, "title")


@pytest.mark.usefixtures("_matplotlib")
def test_every_span_is_a_bar(timelines, monkeypatch):
    from matplotlib.axes import Axes

    bars = []
    barh = Axes.barh

    def recorded(self, y, width, *args, **options):
        bars.append((options["left"], width))
        return barh(self, y, width, *args, **options)

    monkeypatch.setattr(Axes, "barh", recorded)
    png(timelines, "title")
    for timeline in timelines:
        for span in timeline.spans:
            assert (1e3 * span.start_s, 1e3 * span.duration_s) in bars


@pytest.mark.usefixtures("_matplotlib")
def test_names_are_no_mathematics(timelines):
    name = r"$\no$"
    assert png([replace(timelines[0], title=name)], name)


@pytest.mark.usefixtures("_matplotlib")
def test_a_path_that_cannot_be_written_is_named(timelines, tmp_path):
    with pytest.raises(OutputError, match="missing"):
        save(timelines, tmp_path / "missing" / "a.png", "title")


def test_missing_matplotlib_names_the_remedy(timelines, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"comm-plan\[report\]"):
        png(timelines, "title")
