"""The one thread that talks to the other ranks while backward goes on.

Jobs run one after the other, in the order in which they are submitted, so every rank
makes the same collectives in the same order. Who waits for a job does not sleep while
none is running: on CPUs it runs what is next itself. Where more threads than cores want
to run, this one gets a core milliseconds after it was woken, and who waits for it
another one milliseconds after it is done.

The first failure is kept: every later job fails with it at once, instead of waiting for
ranks that are no longer there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from comm_plan.errors import RunError

Result = TypeVar("Result")


class Pending(Generic[Result]):
    """A submitted job: ``wait()`` returns its result or raises what it raised.

    An interrupt, such as Ctrl-C, is raised once: who waits again did not ask for it.
    """

    def __init__(
        self,
        future: Future[Result],
        run_until: Callable[[Future[Result]], None],
        device: torch.device,
        done: torch.cuda.Event | None,
    ) -> None:
        self._future = future
        self._run_until = run_until
        self._device = device
        self._done = done
        self._is_told = False

    def wait(self, *, idle: bool = False) -> Result:
        """Block until the job has ended; on CUDA, order the current stream after it.

        Args:
            idle: run no job meanwhile.
        """
        if not idle:
            self._run_until(self._future)
        result = self._result()
        if self._done is not None:
            self._done.wait(torch.cuda.current_stream(self._device))
        return result

    def _result(self) -> Result:
        was_told, self._is_told = self._is_told, self._future.exception() is not None
        if was_told:
            raise _kept(self._future.exception())
        return self._future.result()


class CommunicationThread:
    """Runs jobs one after the other beside the main thread.

    On CUDA each job runs on a stream of its own, of high priority, after what the
    current stream had queued when the job was submitted.

    Args:
        device: where the tensors of the jobs live.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._jobs: deque[tuple[Callable[[], object], Future[Any]]] = deque()
        self._turn = threading.Lock()
        self._runs_on: int | None = None
        self._failure: BaseException | None = None
        self._stream = _stream_first(device)
        self._executor = ThreadPoolExecutor(
            1,
            thread_name_prefix="comm-plan",
            initializer=partial(_begin_on, self._stream),
        )

    def submit(
        self, job: Callable[[], Result], *, wake: bool = True
    ) -> Pending[Result]:
        """Queue ``job`` behind all earlier ones.

        Args:
            job: what to run.
            wake: if False, and no job is running, none begins before somebody waits:
                for who does so next.
        """
        future: Future[Result] = Future()
        done = None
        if self._stream is not None:
            ready = torch.cuda.current_stream(self._device).record_event()
            done = torch.cuda.Event()
            job = partial(_run_on_stream, self._stream, job, ready, done)
        self._jobs.append((job, future))
        # Who has the turn may have found no job just before this one came.
        if wake or self._turn.locked() or self._stream is not None:
            self._executor.submit(self._run_queued)
        return Pending(future, self._run_until, self._device, done)

    @property
    def is_current(self) -> bool:
        """Whether it is a job that asks."""
        return self._runs_on == threading.get_ident()

    def close(self) -> None:
        """End the thread after the jobs that are queued; no job may ask for it."""
        self._executor.submit(self._run_queued)
        self._executor.shutdown(wait=True)

    def _run_queued(self) -> None:
        """Run the jobs that nobody has begun (on the thread)."""
        with self._turn:
            while self._jobs:
                self._run_first()

    def _run_until(self, future: Future[Result]) -> None:
        """Run jobs until ``future`` has ended, if the thread runs none itself.

        As the thread would: without the autocast of who waits.
        """
        if self._stream is not None or future.done():
            return
        if self._turn.acquire(blocking=False):
            try:
                with _without_autocast():
                    while self._jobs and not future.done():
                        self._run_first()
            except BaseException as error:  # what jobs raise is in their futures
                self._failure = self._failure or _kept(error)
                raise
            finally:
                self._turn.release()

    def _run_first(self) -> None:
        """Run the first job, which stays the first if an interrupt comes in between."""
        job, future = self._jobs[0]
        self._runs_on = threading.get_ident()
        try:
            if not future.done():
                self._run(job, future)
        finally:
            self._runs_on = None
        self._jobs.popleft()

    def _run(self, job: Callable[[], Result], future: Future[Result]) -> None:
        """Run ``job``; ``future`` gets its end."""
        try:
            if self._failure is not None:
                raise self._failure
            result = job()
        except BaseException as error:
            self._failure = self._failure or _kept(error)
            future.set_exception(error)
        else:
            future.set_result(result)


def _without_autocast() -> AbstractContextManager[object]:
    """End autocast on the CPU, if it is on; to ask is cheaper than to end it."""
    if torch.is_autocast_enabled("cpu"):
        return torch.autocast("cpu", enabled=False)
    return nullcontext()


def _stream_first(device: torch.device) -> torch.cuda.Stream | None:
    """Return a stream whose operations go before those of backward; on CPUs none."""
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device, priority=-1)


def _begin_on(stream: torch.cuda.Stream | None) -> None:
    """Let this thread begin on the device of ``stream``.

    It would on device 0, where then every rank of the host took memory.
    """
    if stream is not None:
        torch.cuda.set_device(stream.device)


def _run_on_stream(
    stream: torch.cuda.Stream,
    job: Callable[[], Result],
    ready: torch.cuda.Event,
    done: torch.cuda.Event,
) -> Result:
    """Run ``job`` on ``stream``, between the two events."""
    with torch.cuda.stream(stream):
        ready.wait()
        result = job()
        done.record()
    return result


def _kept(error: BaseException | None) -> BaseException:
    """Return what jobs fail with that follow one that ended so, and who waits again."""
    if isinstance(error, Exception):
        return error
    return RunError("an exchange was interrupted: go on from a checkpoint")
