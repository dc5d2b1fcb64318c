"""What the papers print, and what was measured here, from the files in ``data/``."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from comm_plan.plans import CollectiveCost, Network

DATA = Path(__file__).parent / "data"


@cache
def results(paper: str) -> dict[str, Any]:
    """Return the printed figures of ``paper``; each is explained by its key."""
    found: dict[str, Any] = _read("results.json")[paper]
    return found


@cache
def networks() -> dict[str, Any]:
    """Return the costs of the papers' clusters."""
    return _read("networks.json")


@cache
def hosts() -> dict[str, Any]:
    """Return what was measured on emulated hosts."""
    return _read("hosts.json")


def point_to_point(cluster: str) -> tuple[float, float]:
    """Return alpha and beta of a message on ``cluster``, in s and s/byte."""
    cost = networks()["point_to_point"][cluster]
    return cost["alpha_s"], cost["beta_s_per_byte"]


def affine(
    collective: str, alpha_s: float, beta_s_per_byte: float, world_size: int = 2
) -> Network:
    """Return a network of which only this affine cost is known."""
    cost = CollectiveCost.affine(alpha_s, beta_s_per_byte)
    return Network(
        backend="published", world_size=world_size, collectives={collective: cost}
    )


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / name).read_text(encoding="utf-8"))
    return found
