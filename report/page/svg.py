"""Elements of SVG, escaped."""

from __future__ import annotations

from markupsafe import Markup, escape


def element(name: str, *content: str, **attributes: object) -> Markup:
    """Return an SVG element.

    Args:
        name: such as ``rect``.
        content: its children; text is escaped, markup stays.
        attributes: by name, ``_`` for ``-`` and at the end for ``class_``; numbers are
            rounded to hundredths, None is left out.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(escape(child) for child in content)
    return Markup(f"<{name}{given}>{inner}</{name}>")


def percent(share: float) -> str:
    """Return a share of one as a length in percent."""
    return f"{100 * share:.4f}".rstrip("0").rstrip(".") + "%"


def _text(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return value
