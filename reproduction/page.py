"""The page: what all chapters say, and how it came about."""

from __future__ import annotations

from comm_plan.reproduction import gtopk, lags, markdown, mg_wfbp, terngrad, vgc
from comm_plan.reproduction.values import Chapter

PAPERS = (mg_wfbp, lags, gtopk, terngrad, vgc)

TITLE = "The five papers"
TEXT = """\
What the papers behind comm-plan print, beside what it computes: every table and figure
that can be had without their clusters and data sets. `comm-plan reproduce` writes this
page (`make papers` in a checkout); nothing on it is typed. Printed figures come from
`reproduction/data/`, where each paper is named; the others from the planner's schedule
model and the collectives' closed forms, with the papers' own start-ups and rates."""


def modelled() -> tuple[Chapter, ...]:
    """Return what follows from models alone: the same on every machine."""
    return tuple(paper.chapter() for paper in PAPERS)


def page() -> str:
    """Return the page as Markdown."""
    return markdown.page(TITLE, TEXT, modelled())
