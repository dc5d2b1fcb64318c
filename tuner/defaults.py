"""What a tuning is given unless it is told otherwise; without PyTorch, for the help."""

from __future__ import annotations

BUDGET_S = 300.0
"""Seconds that all of it may take."""

SEEDS = 3
"""Trainings of each plan that is judged by loss."""
