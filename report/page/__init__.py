"""One page of whatever documents there are: HTML that needs nothing else.

A section is one file here with a function that returns it, or None where its documents
are missing, and one line in ``SECTIONS``. Sections consist of blocks, and every kind of
block names the template that lays it out. Text is escaped by the templates.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from comm_plan.report.page.blocks import Section
from comm_plan.report.page.buckets import buckets
from comm_plan.report.page.cards import cards
from comm_plan.report.page.forecast import scaling, solvers
from comm_plan.report.page.given import Given
from comm_plan.report.page.layers import layers
from comm_plan.report.page.network import network
from comm_plan.report.page.runs import runs
from comm_plan.report.page.sources import sources
from comm_plan.report.page.timelines import timelines
from comm_plan.report.page.tuning import tuning
from comm_plan.report.page.verdict import remarks, verdict

SECTIONS: tuple[Callable[[Given], Section | None], ...] = (
    tuning,
    timelines,
    runs,
    solvers,
    scaling,
    buckets,
    layers,
    network,
    sources,
)
"""Every section, in the order of the page."""

_WHOLE = re.compile(r"(--[\w-]+|[\d.]+ (?:%|(?:[mun]?s|[GMk]?B|[GMk]bit/s)\b))")

_TEMPLATES = Path(__file__).parent / "templates"


def to_page(given: Given) -> str:
    """Return the page of ``given`` as HTML."""
    found = [make(given) for make in SECTIONS]
    page = _environment().get_template("page.html")
    return page.render(
        model=given.model,
        verdict=verdict(given),
        remarks=list(remarks(given)),
        links=given.emulated_links.items(),
        cards=list(cards(given)),
        sections=[section for section in found if section is not None],
    )


def _whole(text: str) -> Markup:
    """Return ``text``, in which no line ends within an option or before a unit."""
    return Markup(_WHOLE.sub(r'<span class="whole">\1</span>', str(escape(text))))


@cache
def _environment() -> Environment:
    """Return what lays blocks out; it takes longer to read than a page to write."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["whole"] = _whole
    return environment
