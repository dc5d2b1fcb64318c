import re
from html.parser import HTMLParser

import pytest

from comm_plan.report.html import WIDTH, to_html

VOID = {"meta", "rect", "line"}


class Page(HTMLParser):
    """Collects elements and checks that they close in order."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def spans(self):
        return [
            a for tag, a in self.elements if tag == "rect" and a.get("class") == "span"
        ]


def test_every_span_is_drawn_once_to_scale(timelines):
    drawn = Page(to_html(timelines, "a plan")).spans()
    expected = [span for t in timelines for span in t.spans]
    assert len(drawn) == len(expected)
    scale = WIDTH / 0.040
    wanted = sorted((s.start_s * scale, s.duration_s * scale) for s in expected)
    found = sorted((float(a["x"]), float(a["width"])) for a in drawn)
    for want, got in zip(wanted, found, strict=True):
        assert got == pytest.approx(want, abs=0.01)


def test_page_is_well_formed_and_escapes_names(timelines):
    page = Page(to_html(timelines, "<title> & co"))
    assert page.open == []
    tips = [a["data-tip"] for a in page.spans()]
    assert any(tip.startswith('bucket "0" <w>\ncommunication') for tip in tips)
    assert any(tip.endswith("topk [bold] 1 %") for tip in tips)


def test_page_loads_nothing_from_elsewhere(timelines):
    text = to_html(timelines, "a plan")
    assert not re.search(r"https?://|@import|<link|src=", text)
    assert "url(" not in text.replace("url(#hatch)", "")


def test_exposed_communication_is_hatched(timelines):
    page = Page(to_html(timelines[:1], "a plan"))
    hatched = [
        a
        for tag, a in page.elements
        if tag == "rect" and a.get("class") == "exposed" and "x" in a
    ]
    (only,) = hatched
    assert float(only["x"]) == pytest.approx(WIDTH * 0.75)
    assert float(only["width"]) == pytest.approx(WIDTH * 0.15)
