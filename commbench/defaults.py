"""What a sweep is given unless it is told otherwise; without PyTorch, for the help."""

from __future__ import annotations

BUDGET_S = 90.0
"""Seconds that all of it may take, about."""
