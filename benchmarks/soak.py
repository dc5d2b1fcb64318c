"""A long training under stress: does anything hang or grow?

Ranks of a user's own loop train by a plan that is partly compressed, with random
delays. Now and then one of them is suspended for 5 s, and on emulated hosts (root on
Linux) the rate of the links changes; half the time their queues are too short, so that
packets are lost. Every rank samples its own memory, file descriptors and threads.
Writes a table (Markdown) and the figures (JSON) to ``benchmarks/results``.

    python -m comm_plan.benchmarks.soak --duration 1800
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from comm_plan import units
from comm_plan.benchmarks import tables
from comm_plan.benchmarks.commands import module
from comm_plan.benchmarks.hosts import EmulatedHosts, supported
from comm_plan.transports.launch import run_local

RANKS = 3
RATES = ("1gbit", "200mbit", "50mbit", None)
LOSSY_RATES = ("200mbit", "50mbit")
SUSPENDED_S = 5.0
BETWEEN_S = 10.0
"""Between two troubles."""

SAMPLES = 40
STEPS_BETWEEN = 20
GROWTH_NBYTES = 8 << 20
"""More memory than that is growth: an allocator settles within less."""


@dataclass(frozen=True)
class Sample:
    """What one rank holds.

    Attributes:
        step: after which.
        rss_nbytes: resident memory.
        descriptors: open files and sockets.
        threads: of the process.
    """

    step: int
    rss_nbytes: int
    descriptors: int
    threads: int

    @classmethod
    def now(cls, step: int) -> "Sample":
        """Return this process's."""
        lines = Path("/proc/self/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines)
        return cls(
            step,
            int(status["VmRSS"].split()[0]) * 1024,
            sum(1 for _ in Path("/proc/self/fd").iterdir()),
            int(status["Threads"]),
        )


def train(folder: Path, duration_s: float) -> None:
    """Train for ``duration_s`` as one rank; write the samples."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from comm_plan import parallelize
    from comm_plan.plans import Bucket, Plan, PlannedModel, TopK
    from comm_plan.plans.parameters import model_fingerprint, trainable

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 16))
    names = tuple(trainable(model))[::-1]
    sparse = Bucket(
        tensors=names[2:], compressor=TopK(density=0.01), collective="gtopk"
    )
    plan = Plan(
        solver="by hand",
        model=PlannedModel(name="soak", fingerprint=model_fingerprint(model)),
        world_size=dist.get_world_size(),
        backend="gloo",
        buckets=(Bucket(tensors=names[:2]), sparse),
    )
    engine = parallelize(model, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    (folder / f"pid-{dist.get_rank()}").write_text(str(os.getpid()))
    samples: list[Sample] = []
    end_s = time.monotonic() + duration_s
    next_s = time.monotonic()
    going_on = [True]
    while going_on[0]:
        if random.random() < 0.05:
            time.sleep(random.expovariate(1 / 0.05))
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
        if time.monotonic() >= next_s:
            next_s += duration_s / SAMPLES
            samples.append(Sample.now(engine.step))
        if engine.step % STEPS_BETWEEN == 0:
            going_on = [time.monotonic() < end_s]
            dist.broadcast_object_list(going_on)
    written = json.dumps([asdict(sample) for sample in samples])
    (folder / f"samples-{dist.get_rank()}.json").write_text(written)
    engine.close()
    dist.destroy_process_group()


@dataclass(frozen=True)
class Endured:
    """A training that lasted.

    Attributes:
        samples: of every rank.
        suspended: how often a rank was.
        segments: TCP segments that were sent, and sent again because they were lost;
            None: on one host, where no link changed.
    """

    samples: list[list[Sample]]
    suspended: int
    segments: tuple[int, int] | None

    @property
    def grew(self) -> bool:
        """Whether a rank holds more at the end than after its first quarter."""
        return any(map(grew, self.samples))


def trouble(
    folder: Path, hosts: EmulatedHosts | None, training: threading.Thread
) -> int:
    """Suspend ranks and change links until the training ends; return how often."""
    suspended = 0
    while training.is_alive():
        training.join(BETWEEN_S)
        pids = [int(path.read_text()) for path in folder.glob("pid-*")]
        if len(pids) < RANKS or len(list(folder.glob("samples-*"))):
            continue
        if hosts is not None:
            lossy = random.random() < 0.5
            hosts.set_rate(random.choice(LOSSY_RATES if lossy else RATES), lossy=lossy)
        victim = random.choice(pids)
        with contextlib.suppress(ProcessLookupError):  # its training has ended
            os.kill(victim, signal.SIGSTOP)
            time.sleep(SUSPENDED_S)
            os.kill(victim, signal.SIGCONT)
            suspended += 1
    return suspended


def soak(duration_s: float) -> Endured:
    """Train for so long under stress.

    Raises:
        RuntimeError: a rank failed, or they hang.
    """
    failures: list[str] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hosts = None
        if supported() is None:
            hosts = stack.enter_context(EmulatedHosts(RANKS, rate=RATES[0]))
        training = threading.Thread(
            target=run_ranks, args=(folder, duration_s, hosts, failures), daemon=True
        )
        training.start()
        suspended = trouble(folder, hosts, training)
        training.join()
        if failures:
            raise RuntimeError(f"it did not last: {failures}")
        files = sorted(folder.glob("samples-*.json"))
        if len(files) < RANKS:
            raise RuntimeError(f"only {len(files)} of {RANKS} ranks wrote samples")
        each = [[Sample(**one) for one in json.loads(f.read_text())] for f in files]
        return Endured(each, suspended, hosts.tcp_segments() if hosts else None)


def run_ranks(
    folder: Path, duration_s: float, hosts: EmulatedHosts | None, failures: list[str]
) -> None:
    """Run the ranks to their end; add to ``failures`` what went wrong."""
    own = "comm_plan.benchmarks.soak"
    command = module(own, "--train", folder, "--duration", duration_s)
    try:
        if hosts is None:
            if run_local(command, RANKS):
                failures.append("a rank failed")
        else:
            for end in hosts.run(command, timeout_s=2 * duration_s + 240):
                if end.returncode:
                    failures.append(end.stderr[-500:])
    except Exception as error:  # whatever it was, the training did not last
        failures.append(repr(error))


def grew(samples: list[Sample]) -> bool:
    """Return whether a rank holds more at the end than after its first quarter."""
    early, late = _quarters(samples)
    return (
        late.rss_nbytes > early.rss_nbytes + GROWTH_NBYTES
        or late.descriptors > early.descriptors
        or late.threads > early.threads
    )


def _quarters(samples: list[Sample]) -> tuple[Sample, Sample]:
    """Return the medians of the second and of the last quarter."""
    quarter = max(len(samples) // 4, 1)
    parts = samples[quarter : 2 * quarter], samples[-quarter:]
    early, late = (
        Sample(
            *(int(statistics.median(v)) for v in zip(*map(_values, part), strict=True))
        )
        for part in parts
    )
    return early, late


def _values(sample: Sample) -> tuple[int, ...]:
    return tuple(asdict(sample).values())


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--duration", type=float, default=1800.0, help="seconds")
    parser.add_argument("--train", type=Path, help="run as one rank, with this folder")
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train, arguments.duration)
        return
    endured = soak(arguments.duration)
    rows = []
    for rank, samples in enumerate(endured.samples):
        early, late = _quarters(samples)
        rows.append([rank, samples[-1].step, *_change(early, late)])
    head = ["rank", "steps", "memory, early", "late", "descriptors", "threads"]
    links = "on one host"
    if endured.segments:
        sent, again = endured.segments
        links = (
            "the links' rates changed as often, and half the time their queues were so "
            f"short that packets were lost: of {sent} TCP segments {again / sent:.1%} "
            "were sent again"
        )
    parts = [
        f"# {units.seconds(arguments.duration)} of training under stress",
        tables.markdown(head, rows),
        f"Random delays; a rank suspended for {SUSPENDED_S:g} s {endured.suspended} "
        f"times; {links}. Early and late: medians of the second and the last quarter.",
    ]
    figures = asdict(endured)
    print(tables.save("soak", parts, figures))
    sys.exit(endured.grew)


def _change(early: Sample, late: Sample) -> list[str]:
    return [
        f"{early.rss_nbytes / 1e6:.1f} MB",
        f"{late.rss_nbytes / 1e6:.1f} MB",
        f"{early.descriptors} -> {late.descriptors}",
        f"{early.threads} -> {late.threads}",
    ]


if __name__ == "__main__":
    main()
