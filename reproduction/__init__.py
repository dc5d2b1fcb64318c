"""Five papers, their printed figures beside ours, as one page.

::

    comm-plan reproduce            # computes, trains, writes reproduction.md
    comm-plan reproduce --models-only

A module for each paper makes a :class:`~.values.Chapter` by pure functions of the
planner's and the collectives' models (seconds of work, the same on every machine).
``trainings`` measures what needs a training, and keeps it in ``data/trainings.json``.
``data/`` holds what the papers print, with the place where it is printed, and the
trainings.
"""
