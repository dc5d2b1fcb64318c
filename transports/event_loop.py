"""Gloo's event loop, kept from taking the core of the thread that it waits for.

The loop never blocks on a connection that another thread has locked: it passes over the
event, is told of it again at once, and so turns until the lock is free. If waking up
took it to the core of the very thread that holds the lock, both get on only at the
scheduler's next tick, up to 4 ms later. Linux's batch policy is for threads that should
not take a core from others by waking up; any process may choose it for its own threads.

On two cores with nothing else to do, an all-reduce of 4 kB took 0.5 to 2.9 ms without
it, with it 0.35 ms (2 ranks), and 6.6 to 7.1 against 1.2 ms (4 ranks). Beside
computation that left no core idle, all-reduces of 4 kB to 8 MB took 0.5 to 1.9 times as
long as without it, iterations of a training 0.8 to 1.07 times.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

_NAME = "gloo_tcp_loop"
_THREADS = Path("/proc/self/task")


def let_others_finish() -> None:
    """Give all event loops of this process the batch policy, where Linux has one."""
    if sys.platform != "linux":
        return
    for thread in _THREADS.iterdir():
        with suppress(OSError):  # a thread that has just ended
            if (thread / "comm").read_text().strip() == _NAME:
                os.sched_setscheduler(
                    int(thread.name), os.SCHED_BATCH, os.sched_param(0)
                )
