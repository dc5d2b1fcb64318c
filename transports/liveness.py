"""Noticing that a rank died, and telling every other rank which one it was.

A collective that fails says "connection reset", on some ranks at once and on others
never, and seldom names the rank that is to blame. So every rank keeps one TCP
connection to rank 0, served by a daemon thread. Four things are seen there:

* A process that ends, however it ends, has its connection closed by the kernel: a close
  without a word before it means that the rank died.
* A rank that fails on its own says why, in one line, before it leaves.
* Both sides send a beat twice a second; a rank that is stopped, or cut off from the
  network, goes silent while its connection stays open.
* A beat says which batch its rank has come to, so that a rank that has run out of
  batches is known while the others wait for it in a collective.

The first finding is the verdict. Rank 0 passes it on, so that every rank reports the
same cause. A collective that failed is looked up with :meth:`Liveness.explain`. A rank
whose main thread takes no notice of the verdict, because it sits in a collective that
will not return, is ended by its daemon thread.

Silence is counted in this process's own beats, not by the clock: after the whole job
was suspended and resumed nobody looks dead.

Under MPI mpirun ends all ranks once one has ended badly; there the connections serve to
find a rank that is stopped, has run out of batches or has left, and a call that never
ends (:mod:`~comm_plan.transports.calls`): MPI itself never gives up.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

from comm_plan.errors import CollectiveError, PeerError, RunError, one_line
from comm_plan.transports.calls import Calls
from comm_plan.transports.links import Link, Ranks, connect_links
from comm_plan.transports.progress import Progress

PATIENCE_S = 12.0
"""A rank silent for so long is given up; with what follows, all have ended in 20 s."""

GRACE_S = 3.0
"""How long a rank may take no notice of a verdict before it is ended."""

_BEAT_S = 0.5
_LEFT_S = 6.0  # how long a call may go on after another rank has left
_STUCK_S = 0.2  # as long as the others need to read the verdict
_EXPLAIN_S = 3.0  # how long a failed collective waits for a verdict
_LINGER_S = 5.0  # how long a rank stays for the others to read its last words
_MAX_CAUSE = 2000  # characters


class Liveness:
    """This rank's connections to the others, and what it learnt from them.

    Making one is a collective call.

    Args:
        ranks: a transport over all ranks; used in the constructor only.
        address: how the other ranks reach rank 0 (only rank 0's counts): see
            :func:`~comm_plan.transports.links.reachable_address`.
        report: called with the error right before this process is ended because its
            main thread took no notice of a verdict.
        patience_s: a rank silent for so long is given up: many beats of 0.5 s. A
            process that holds Python's interpreter lock for so long looks silent.
        calls: of an engine whose calls never fail by themselves; None: they do.

    Raises:
        PeerError: the ranks cannot connect to rank 0.
    """

    def __init__(
        self,
        ranks: Ranks,
        *,
        address: str,
        report: Callable[[PeerError], None],
        patience_s: float = PATIENCE_S,
        calls: Calls | None = None,
    ) -> None:
        self._calls = calls
        self._rank = ranks.rank
        self._report = report
        self._patience_s = patience_s
        self._verdict: str | None = None
        self._judged = threading.Event()
        self._noticed = threading.Event()  # by the main thread, which may have left
        self._leaving = False
        self._sending = threading.Lock()
        self._left: list[int] = []
        self._progress = {ranks.rank: Progress()}
        self._links = connect_links(ranks, address)
        _with_links.add(self)
        self._thread = threading.Thread(
            target=self._watch, name="comm-plan liveness", daemon=True
        )
        self._thread.start()

    def explain(self, error: CollectiveError) -> RunError:
        """Return the error to raise in place of ``error``, a failed collective.

        Waits up to 3 s for a verdict. Without one the others are told that this rank
        failed, and ``error`` itself is returned.
        """
        self._noticed.set()
        if self._left:
            self._judge(self._who_left)
        if self._judged.wait(_EXPLAIN_S):
            return PeerError(self._verdict)
        self.fail(str(error))
        return error

    def fail(self, cause: str) -> None:
        """Tell the others that this rank fails and why, unless a verdict is out."""
        self._noticed.set()
        self._judge(f"rank {self._rank} failed: {one_line(cause, _MAX_CAUSE)}")

    def note(self, progress: Progress) -> None:
        """Note how far this rank is in its data; the others learn it with a beat."""
        is_news = progress.at_end or self._progress[self._rank].at_end
        self._progress[self._rank] = progress
        if is_news:
            self._send(f"beat {progress}")

    def close(self) -> None:
        """Leave: without a verdict as a rank whose work is done.

        Returns once the other side has closed too, or after 5 s.
        """
        self._noticed.set()
        self._say_goodbye()
        self._thread.join(_LINGER_S)
        for link in list(self._links):
            link.hang_up()  # the thread, which may be waiting on it, closes it

    def leave(self) -> None:
        """Leave as :meth:`close` does, but wait for nobody: the process ends."""
        self._noticed.set()
        self._say_goodbye()

    def _watch(self) -> None:
        """Serve the links until all are closed (the daemon thread).

        Calls that never end by themselves are watched over until this rank leaves.
        """
        last_beat_s = time.monotonic()
        while self._links or (self._calls is not None and not self._noticed.is_set()):
            if self._links:
                self._read()
            else:
                self._noticed.wait(_BEAT_S)
            if time.monotonic() - last_beat_s >= _BEAT_S:
                last_beat_s = time.monotonic()
                self._beat()

    def _read(self) -> None:
        """Take what the others say, waiting for it no longer than a beat."""
        with selectors.DefaultSelector() as selector:
            for link in self._links:
                selector.register(link, selectors.EVENT_READ, link)
            readable = [key.data for key, _ in selector.select(_BEAT_S)]
        for link in readable:
            for line in link.read():
                self._hear(link, line)
            if link.closed:
                self._links.remove(link)
                link.close()
                if link.done:
                    self._left.append(link.rank)
                else:
                    self._judge(
                        f"rank {link.rank} died: its connection closed without a word"
                    )

    def _hear(self, link: Link, line: str) -> None:
        word, _, rest = line.partition(" ")
        link.silent_beats = 0
        if word == "done":
            link.done = True
        elif word == "beat":
            self._progress[link.rank] = Progress.parse(rest)
        elif word == "verdict":
            self._judge(rest)
        elif word == "stuck":
            self._judge(rest, is_stuck=True)

    def _compare_progress(self) -> None:
        """Judge a rank that has run out of batches while another has begun one more.

        Both now wait for each other in collectives that will never end.
        """
        everyone = list(self._progress.items())
        first, furthest = max(everyone, key=lambda item: item[1].in_order)
        for rank, progress in everyone:
            if progress.ran_out_before(furthest):
                self._judge(
                    f"rank {rank} has run out of batches in epoch {progress.epoch} "
                    f"after {progress.batches}, rank {first} has more: give all ranks "
                    "as many",
                    is_stuck=True,
                )

    def _check_calls(self, calls: Calls) -> None:
        """Judge a call that will not end: for its time, or as a rank is gone."""
        call = calls.beat()
        if call is None:
            return
        waited_s = call.beats * _BEAT_S
        if self._left and waited_s >= _LEFT_S:
            self._judge(self._who_left, is_stuck=True)
        elif waited_s >= calls.timeout_s:
            self._judge(
                f"rank {self._rank} has waited for {calls.timeout_s:g} s for the other "
                f"ranks in {call.operation}",
                is_stuck=True,
            )

    @property
    def _who_left(self) -> str:
        return (
            f"rank {self._left[0]} has ended while others go on: give all ranks as "
            "many steps"
        )

    def _beat(self) -> None:
        self._send(f"beat {self._progress[self._rank]}")
        if self._calls is not None:
            self._check_calls(self._calls)
        if self._rank == 0:
            self._compare_progress()
        for link in self._links:
            link.silent_beats += 1
            if not link.done and link.silent_beats * _BEAT_S >= self._patience_s:
                self._judge(
                    f"rank {link.rank} is silent for {self._patience_s:g} s: it is "
                    "stopped, cut off from the network, or in a call that holds "
                    "Python's interpreter lock"
                )

    def _judge(self, verdict: str, *, is_stuck: bool = False) -> None:
        """Make ``verdict`` known, unless there is one.

        Args:
            verdict: what the main thread of every rank is to take notice of.
            is_stuck: none of them can, each waits for another.
        """
        if self._verdict is None and not self._leaving:
            self._verdict = verdict
            self._send(f"{'stuck' if is_stuck else 'verdict'} {verdict}")
            self._judged.set()
            wait_s = _STUCK_S if is_stuck else GRACE_S
            threading.Thread(
                target=self._end_unless_noticed, args=(wait_s,), daemon=True
            ).start()

    def _send(self, line: str) -> None:
        with self._sending:
            for link in list(self._links):
                link.write(line)

    def _say_goodbye(self) -> None:
        if not self._judged.is_set():
            self._leaving = True
            self._send("done")
        with self._sending:
            for link in list(self._links):
                link.finish_writing()

    def _end_unless_noticed(self, wait_s: float) -> None:
        """End this process if its main thread does not come back."""
        if not self._noticed.wait(wait_s):
            with suppress(Exception):
                self._report(PeerError(self._verdict))
            os._exit(1)

    def drop_links(self) -> None:
        """Close this process's end of all connections."""
        for link in list(self._links):
            link.close()


_with_links: WeakSet[Liveness] = WeakSet()


def _drop_all_links() -> None:
    """Let a forked child (a data loader's worker) have none of the connections.

    It would keep them open after this process died.
    """
    for liveness in list(_with_links):
        liveness.drop_links()


os.register_at_fork(after_in_child=_drop_all_links)
