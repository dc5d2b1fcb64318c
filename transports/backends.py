"""Every backend by name; a new one is one file in this room and one line here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from comm_plan.errors import unknown

if TYPE_CHECKING:
    import torch

    from comm_plan.transports.base import Transport
    from comm_plan.transports.ranks import Place


@dataclass(frozen=True)
class Joining:
    """How to join a run.

    Attributes:
        backend: the backend's name.
        here: this process's place in the run.
        device: where this rank's tensors live.
        timeout_s: how long to wait for all ranks to come, and for a collective.
        patience_s: a rank silent for so long is given up.
        report: called with the error where this process must end on the spot.
    """

    backend: str
    here: Place
    device: torch.device
    timeout_s: float
    patience_s: float
    report: Callable[[BaseException], None]


class BackendModule(Protocol):
    """What the file of a backend offers."""

    def join(self, joining: Joining) -> AbstractContextManager[Transport]:
        """Join the run; leave it at the end of the block."""

    def joined(
        self, here: Place, device: torch.device | None = None
    ) -> Transport | None:
        """Return the transport of a run that this process is in without ``join``.

        Args:
            here: this process's place in it.
            device: where the tensors live, if it is known and the backend can.
        """


@dataclass(frozen=True)
class Backend:
    """An engine that moves tensors between ranks, loaded on first use.

    Attributes:
        module: the file in this room that offers :class:`BackendModule`.
        device: the type of device whose tensors it moves: ``cpu``, or ``cuda`` for
            one CUDA device to each rank of a host.
        launcher: how ``--local-ranks`` starts its ranks, one of ``launch.LAUNCHERS``.
    """

    module: str
    device: str = "cpu"
    launcher: str = "torchrun"

    def load(self) -> BackendModule:
        """Return the module."""
        module: BackendModule = import_module(f"comm_plan.transports.{self.module}")
        return module


BACKENDS = {
    "gloo": Backend("distributed"),
    "nccl": Backend("distributed", device="cuda"),
    "mpi": Backend("mpi", launcher="mpirun"),
}
"""Every backend by its name on the command line and in documents."""


def find_backend(name: str) -> Backend:
    """Return the backend called ``name``.

    Raises:
        InputError: there is none.
    """
    if name not in BACKENDS:
        raise unknown("backend", name, BACKENDS)
    return BACKENDS[name]
