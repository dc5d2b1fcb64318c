import pytest

from comm_plan.errors import InputError
from comm_plan.plans.link import LATENCY_S, EmulatedLink


@pytest.mark.parametrize(
    ("text", "bytes_per_s", "latency_s"),
    [
        ("100mbit", 12.5e6, LATENCY_S),
        ("1Gbit", 125e6, LATENCY_S),
        ("2.5gbit:2ms", 312.5e6, 2e-3),
        ("64kbit:1s", 8e3, 1.0),
        ("10gbit:5us", 1.25e9, 5e-6),
    ],
)
def test_parses(text, bytes_per_s, latency_s):
    link = EmulatedLink.parse(text)
    assert link.bytes_per_s == pytest.approx(bytes_per_s)
    assert link.latency_s == pytest.approx(latency_s)


@pytest.mark.parametrize(
    "text", ["", "100", "100mb", "fast", "1..5gbit", "0mbit", "1gbit:", "1gbit:2"]
)
def test_refuses(text):
    with pytest.raises(InputError, match="give a rate"):
        EmulatedLink.parse(text)
