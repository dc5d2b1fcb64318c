"""What a summary consists of."""

from typing import TypeAlias

Fact: TypeAlias = tuple[str, str]
"""What it is, and its value with its unit."""
