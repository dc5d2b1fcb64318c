"""A network link that is emulated: documents measured behind one say so."""

from __future__ import annotations

import re

from comm_plan import units
from comm_plan.errors import InputError
from comm_plan.plans.document import BytesPerSecond, Seconds, Value

LATENCY_S = 50e-6
"""Of a message on an emulated link unless it is given: common for Ethernet and TCP."""

_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_FORM = re.compile(
    rf"(?P<rate>[\d.]+)(?P<bits>{'|'.join(_BITS)})"
    rf"(?::(?P<latency>[\d.]+)(?P<seconds>{'|'.join(_SECONDS)}))?"
)


def link_text(link: EmulatedLink | None) -> str:
    """Return what messages call a link, also one that is not emulated."""
    return str(link or "no emulated link")


class EmulatedLink(Value):
    """Every rank's link to all others: its speed in each direction, and its latency."""

    bytes_per_s: BytesPerSecond
    latency_s: Seconds = LATENCY_S

    def __str__(self) -> str:
        """Return speed and latency as people say them."""
        rate = units.bits_per_s(8 * self.bytes_per_s)
        return f"{rate}, {units.seconds(self.latency_s)} a message"

    @classmethod
    def parse(cls, text: str) -> EmulatedLink:
        """Return the link that ``text`` describes: ``100mbit``, or ``1gbit:2ms``.

        Raises:
            InputError: it describes none.
        """
        match = _FORM.fullmatch(text.strip().lower())
        try:
            if match is None:
                raise ValueError(text)
            rate = float(match["rate"]) * _BITS[match["bits"]] / 8
            if match["latency"] is None:
                return cls(bytes_per_s=rate)
            latency = float(match["latency"]) * _SECONDS[match["seconds"]]
            return cls(bytes_per_s=rate, latency_s=latency)
        except ValueError:
            raise InputError(
                f"link {text!r}: give a rate in kbit, mbit or gbit, and a latency if "
                "it matters, such as 100mbit or 1gbit:2ms"
            ) from None
