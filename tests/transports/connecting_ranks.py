"""A rank of a run that ends well or badly: ``BACKEND END VICTIM [PATIENCE [TIMEOUT]]``.

Rank VICTIM comes to its end amid all-reduces. Every other rank writes one line.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings

import torch

from comm_plan.errors import CommPlanError, InputError
from comm_plan.transports.connect import connect, current_transport


def fail() -> None:
    """Raise what the other ranks shall hear of."""
    raise InputError("the data\nis missing")


def pause() -> None:
    """Stop, and go on after two seconds."""
    waker = subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
    waker.wait()


ENDS = {
    "fail": fail,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "vanish": lambda: os._exit(0),
    "dally": lambda: time.sleep(3600),
    "pause": pause,
}


def write(line: str) -> None:
    """Write a line in one piece: all ranks share the stream."""
    os.write(2, f"{line}\n".encode())


def main() -> int:
    """Run the rank; return its exit code."""
    backend, end, victim, *seconds = sys.argv[1:]
    options = {"timeout_s": 60.0}
    options |= zip(("patience_s", "timeout_s"), map(float, seconds), strict=False)
    report = {"report": lambda error: write(f"on the spot: {error}")}
    try:
        with connect(backend, **options, **report) as transport:
            assert current_transport() is transport
            tensor = torch.ones(1000)
            for step in range(10 if end in ("well", "pause") else 10**9):
                transport.all_reduce(tensor, "max")
                if step == 5 and transport.rank == int(victim) and end in ENDS:
                    ENDS[end]()
            assert transport.gather_objects(transport.rank) == list(
                range(transport.world_size)
            )
            write(f"well: {transport.backend} {transport.rank}")
    except CommPlanError as error:
        write(f"{type(error).__name__}: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    sys.exit(main())
