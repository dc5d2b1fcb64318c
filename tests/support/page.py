"""A report page as a reader finds it."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta"}


class Page(HTMLParser):
    """Collects elements and text, and checks that elements close in order.

    Attributes:
        elements: tag and attributes of each.
        text: of all but styles and scripts, single spaces between words.
        left_open: tags that were never closed.
    """

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.left_open: list[str] = []
        self._words: list[str] = []
        self.feed(source)
        self.close()
        self.text = " ".join(" ".join(self._words).split())

    def handle_starttag(self, tag, attributes):
        """Note an element."""
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.left_open.append(tag)

    def handle_endtag(self, tag):
        """Check that the innermost element is closed."""
        assert self.left_open.pop() == tag

    def handle_data(self, data):
        """Note what a reader sees."""
        if not {"style", "script"} & set(self.left_open):
            self._words.append(data)

    @property
    def sections(self) -> list[str]:
        """The anchors of the sections, from the top."""
        return [a["id"] for tag, a in self.elements if tag == "section"]

    def tips(self) -> list[str]:
        """Return all tooltips."""
        return [a["data-tip"] for _, a in self.elements if "data-tip" in a]

    def values(self) -> list[float]:
        """Return the numbers in table cells, as they are sorted by."""
        return [float(a["data-value"]) for _, a in self.elements if "data-value" in a]

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        """Return the attributes of the elements of a class."""
        return [a for _, a in self.elements if name in (a.get("class") or "").split()]
