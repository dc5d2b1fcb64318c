"""The page: what all chapters say, and how it came about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from comm_plan.reproduction import (
    gtopk,
    lags,
    markdown,
    mg_wfbp,
    terngrad,
    trained,
    trainings,
    vgc,
)
from comm_plan.reproduction.published import DATA
from comm_plan.reproduction.values import Chapter

PAPERS = (mg_wfbp, lags, gtopk, terngrad, vgc)

TITLE = "The five papers"
TEXT = """\
What the papers behind comm-plan print, beside what it computes: every table and figure
that can be had without their clusters and data sets. `comm-plan reproduce` writes this
page (`make papers` in a checkout); no figure in its tables is typed. Printed ones come
from `reproduction/data/`, where each paper is named; the others from the planner's
schedule model and the collectives' closed forms, with the papers' own start-ups and
rates. The last chapter is trained; `--models-only` takes it from the trainings that
were kept."""


def modelled() -> tuple[Chapter, ...]:
    """Return what follows from models alone: the same on every machine."""
    return tuple(paper.chapter() for paper in PAPERS)


def page(folder: Path = DATA) -> str:
    """Return the page as Markdown.

    Args:
        folder: of the trainings that were kept.
    """
    last = trained.chapter(folder / trainings.FILE)
    return markdown.page(TITLE, TEXT, (*modelled(), last))


def reproduced(
    folder: Path | None, *, train: bool, progress: Callable[[str], None]
) -> str:
    """Return the page as Markdown, after training if asked.

    Args:
        folder: of the trainings; None: those that came with comm-plan, and new ones
            are not kept.
        train: whether to train now.
        progress: is told what is going on.

    Raises:
        RunError: a training failed.
        OutputError: the trainings cannot be kept.
    """
    if not train:
        return page(folder or DATA)
    with TemporaryDirectory() as temporary:
        kept = folder or Path(temporary)
        trainings.run(kept, progress)
        return page(kept)
