"""What all tests share: Hypothesis' settings and the small documents."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
from hypothesis import HealthCheck, settings

from comm_plan.compressors.base import Compressor, may_take_together
from comm_plan.plans.compression import KINDS
from comm_plan.report.timeline import Timeline
from comm_plan.tests.support import documents
from comm_plan.tests.support import timelines as drawn
from comm_plan.tests.support.command import Command
from comm_plan.transports.launch import WAITS_ASLEEP, reserved_port

# For this process and those that tests start: the ranks and the workers are the
# parallelism, and they share the cores.
for name, value in {"OMP_NUM_THREADS": "1", **WAITS_ASLEEP}.items():
    os.environ.setdefault(name, value)

if not torch.cuda.is_available():  # before whatever test imports Triton first
    os.environ["TRITON_INTERPRET"] = "1"

# How long an example takes says how busy the machine is, not whether it is right. The
# examples are the same in every run, so that a test fails for who broke it; to look for
# others: pytest --hypothesis-profile search.
for name, same in {"comm-plan": True, "search": False}.items():
    settings.register_profile(
        name,
        deadline=None,
        derandomize=same,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("comm-plan")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the long tests of faults run, and say how long."""
    parser.addoption(
        "--mutations",
        type=int,
        default=0,
        help="fuzz with so many files in all, others than in every run",
    )
    parser.addoption("--mutations-seed", type=int, default=0, help="draw others")
    parser.addoption("--kills", type=int, default=200, help="trainings to kill")
    parser.addoption("--soak-s", type=float, default=1800.0, help="seconds of training")


PROGRAMS = ("examples", "integrations", "recipes")
"""Folders of tests that run whole programs, which no time or delay decides."""


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that start ranks on two workers, never more than two at a time.

    Each fills the cores alone; those that measure are all on one of the workers.
    """
    for item in items:
        if item.get_closest_marker("slow"):
            programs = item.path.parent.name in PROGRAMS
            group = "programs" if programs else "ranks"
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session", autouse=True)
def _torchrun_logs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give torchrun, which never removes its own, a folder for logs."""
    os.environ["PET_LOG_DIR"] = str(tmp_path_factory.mktemp("torchrun"))


@pytest.fixture(scope="session")
def build() -> ModuleType:
    """The builders of profiles and networks."""
    return documents


@pytest.fixture
def timelines() -> list[Timeline]:
    """A merged timeline and a compressed one."""
    return [drawn.merged(), drawn.compressed()]


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command line in this process."""
    return Command(monkeypatch, capsys)


@pytest.fixture(params=["a tensor at a time", "at once, as on a GPU"])
def as_on_a_gpu_too(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compress as a CPU does, and by what is made for a GPU."""
    if request.param == "a tensor at a time":
        return
    for spec in KINDS.values():
        if spec.on_gpu is not None:
            monkeypatch.setattr(spec, "implementation", spec.on_gpu)
    monkeypatch.setattr(Compressor, "takes_together", property(may_take_together))


@pytest.fixture
def port() -> Iterator[int]:
    """A port of this host that is kept for the test."""
    with reserved_port() as port:
        yield port


@pytest.fixture
def one_rank_group() -> Iterator[None]:
    """Give torch.distributed a default process group of this process alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def small_disk() -> Iterator[Callable[[], None]]:
    """Let no file grow beyond 1,000 bytes; give back how to lift that."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def lift() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield lift
    lift()
