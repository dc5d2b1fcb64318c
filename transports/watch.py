"""Liveness for programs that joined their run by themselves.

``comm-plan train`` and :func:`~comm_plan.transports.connect.connect` know where a run
begins and ends. A user's own loop does not say, so the watch begins with the first
:func:`begin`, and ends with the process:

* one that ends by an exception nobody catches tells the others why, and takes them down
  where its engine would not;
* one that ends otherwise says goodbye;
* one that dies, is stopped or cut off is found by the others
  (:mod:`~comm_plan.transports.liveness`).

Children of :mod:`multiprocessing` catch every exception, and forked ones skip
:mod:`atexit`. But all run its finalizers, as the main process does at its end: the
goodbye is one of them. Before Python 3.13 they run while the exception is still on its
way. Since then they run after it is gone, and such a child only says goodbye.

The verdict reaches a rank where it waits for the others: as a
:class:`~comm_plan.errors.PeerError` in the engine, as one line after the traceback
where a collective of the program's own failed. A rank that takes no notice within
seconds, in code of its own or in a collective that never returns, is ended with that
line.
"""

from __future__ import annotations

import sys
import weakref
from multiprocessing.util import Finalize
from types import TracebackType

import torch.distributed as dist

from comm_plan.errors import CollectiveError, RunError
from comm_plan.transports.base import Transport
from comm_plan.transports.calls import Calls
from comm_plan.transports.connect import print_to_stderr
from comm_plan.transports.liveness import Liveness


class Watch:
    """What this process knows of the other ranks of its run.

    Making one is a collective call.

    Args:
        ranks: a transport over all ranks.
        address: how the other ranks reach rank 0 (only rank 0's counts).
        calls: those under way, for an engine whose calls never fail by themselves.

    Attributes:
        ranks: the transport.
    """

    def __init__(
        self, ranks: Transport, *, address: str, calls: Calls | None = None
    ) -> None:
        self.ranks = ranks
        self._liveness = Liveness(
            ranks, address=address, report=print_to_stderr, calls=calls
        )
        self._handled = sys.exc_info()[1]  # a child may be forked in an except block
        self._before = sys.excepthook
        sys.excepthook = self._on_exception
        self._at_exit = Finalize(None, self._on_exit, exitpriority=0)

    def explain(self, error: CollectiveError) -> RunError:
        """Return what to raise in place of ``error``, a failed collective."""
        return self._liveness.explain(error)

    def end(self) -> None:
        """Say goodbye, unless a rank has failed."""
        self._at_exit.cancel()
        if sys.excepthook == self._on_exception:
            sys.excepthook = self._before
        self._liveness.leave()

    def _on_exception(
        self,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        """Show ``error`` as before, then tell the others."""
        self._before(kind, error, trace)
        self._tell(error)

    def _on_exit(self) -> None:
        """Tell the others of the exception on its way, if any; say goodbye."""
        error = _failure(sys.exc_info()[1])
        if error is not None and error is not self._handled:
            self._tell(error)
        self.end()

    def _tell(self, error: BaseException) -> None:
        """Tell the others, or find out from them who is to blame."""
        if isinstance(error, RunError) or not is_from_a_collective(error):
            self._liveness.fail(str(error) or type(error).__name__)
            sys.stdout.flush()
            self.ranks.abort(getattr(error, "exit_code", 1))
            return
        verdict = self._liveness.explain(CollectiveError(str(error)))
        if not isinstance(verdict, CollectiveError):
            print_to_stderr(verdict)


_current: tuple[weakref.ref[object], Watch] | None = None
"""And over which group, which only its owner keeps: gloo's threads end with it."""


def begin(
    ranks: Transport, group: object, *, address: str, calls: Calls | None = None
) -> Watch:
    """Watch over the ranks of the run from now on, in place of those before.

    A collective call.

    Args:
        ranks: a transport over all of them.
        group: what they are to torch or MPI.
        address: as for :class:`Watch`.
        calls: as for :class:`Watch`.
    """
    global _current
    if _current is not None:
        _current[1].end()
    _current = weakref.ref(group), Watch(ranks, address=address, calls=calls)
    return _current[1]


def current(group: object) -> Watch | None:
    """Return the watch over ``group``, if one has begun."""
    if group is None or _current is None or _current[0]() is not group:
        return None
    return _current[1]


def _failure(error: BaseException | None) -> BaseException | None:
    """Return what went wrong in a process that ends by ``error``; None: nothing.

    ``torch.multiprocessing`` exits with code 1 while it handles what went wrong.
    """
    if isinstance(error, SystemExit):
        return error.__context__ if error.code else None
    return error


def is_from_a_collective(error: BaseException) -> bool:
    """Return whether torch.distributed raised ``error``; gloo has no class for it."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)
