"""Colours of lanes, which curves and groups of points take in the same order."""

from itertools import islice

from comm_plan.report.palette import COLORS

FIRST = 5
"""As many groups as the pictures of accuracy have."""


def luminance(color):
    """Return the relative luminance (WCAG) of ``#rrggbb``."""
    shares = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [
        s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares
    ]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_curves_have_colours_that_are_seen_on_white():
    for color in islice(COLORS.values(), FIRST):
        assert 1.05 / (luminance(color) + 0.05) > 2
