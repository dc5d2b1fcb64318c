"""The one thread that talks to the other ranks while backward goes on.

Jobs run in the order in which they are submitted, so every rank makes the same
collectives in the same order. The first failure is kept: every later job fails with it
at once, instead of waiting for ranks that are no longer there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")


class Pending(Generic[Result]):
    """A submitted job: ``wait()`` returns its result or raises what it raised."""

    def __init__(
        self, future: Future[Result], done: torch.cuda.Event | None = None
    ) -> None:
        self._future = future
        self._done = done

    def wait(self) -> Result:
        """Block until the job has ended; on CUDA, order the current stream after it."""
        result = self._future.result()
        if self._done is not None:
            self._done.wait()
        return result


class CommunicationThread:
    """Runs jobs one after the other beside the main thread.

    On CUDA each job runs on a stream of its own, after what the current stream had
    queued when the job was submitted.

    Args:
        device: where the tensors of the jobs live.
    """

    def __init__(self, device: torch.device) -> None:
        # Told by the thread itself, before its first job: the executor learns of it
        # later. By a list, for what the thread holds it keeps alive.
        self._threads: list[int] = []
        self._executor = ThreadPoolExecutor(
            1,
            thread_name_prefix="comm-plan",
            initializer=_note_this_thread,
            initargs=(self._threads,),
        )
        self._failure: BaseException | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def submit(self, job: Callable[[], Result]) -> Pending[Result]:
        """Queue ``job`` behind all earlier ones."""
        if self._stream is None:
            return Pending(self._executor.submit(self._run, job))
        ready = torch.cuda.current_stream().record_event()
        done = torch.cuda.Event()
        future = self._executor.submit(self._run_on_stream, job, ready, done)
        return Pending(future, done)

    @property
    def is_current(self) -> bool:
        """Whether it is this thread that asks."""
        return threading.get_ident() in self._threads

    def close(self) -> None:
        """End the thread after the jobs that are queued."""
        self._executor.shutdown(wait=True)

    def _run(self, job: Callable[[], Result]) -> Result:
        if self._failure is not None:
            raise self._failure
        try:
            return job()
        except BaseException as error:
            self._failure = error
            raise

    def _run_on_stream(
        self,
        job: Callable[[], Result],
        ready: torch.cuda.Event,
        done: torch.cuda.Event,
    ) -> Result:
        assert self._stream is not None
        with torch.cuda.stream(self._stream):
            ready.wait()
            result = self._run(job)
            done.record()
        return result


def _note_this_thread(threads: list[int]) -> None:
    threads.append(threading.get_ident())
