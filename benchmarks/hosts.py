"""Several hosts on one Linux machine, for benchmarks and end-to-end tests.

Each host is a network namespace with a veth pair to a bridge, so ranks on different
hosts talk real TCP through the kernel's whole network stack. A token bucket on both
ends of each pair limits the link in both directions. The bridge has a namespace of its
own: the machine's own interfaces and routes are not touched, and several sets of hosts
can stand side by side.

::

    with EmulatedHosts(4, rate="1gbit") as hosts:
        results = hosts.run([sys.executable, "script.py"])

Needs root and Debian's ``iproute2``; :func:`supported` says what is missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from comm_plan.plans.link import EmulatedLink
from comm_plan.transports.launch import (
    Process,
    end_processes,
    start_process,
    wait_until_ended,
)

_PREFIX = "comm-plan"
_SUBNET = "10.77.0"  # seen in our namespaces only
_PORT = 29500  # likewise: no host runs anything else
_INTERFACE = "eth0"
_BURST_S = 1e-3
"""After a pause a link passes at once what it carries in so long, and no more: it would
be faster than it is for all that fits in."""

_BURST_NBYTES = 16 * 1024, 128 * 1024
"""The least and the most of that; with less, the kernel does more work a packet."""

_QUEUED_S = 0.1
_LOSSY_NBYTES = 16 * 1024  # less than one write of a socket


@dataclass(frozen=True)
class HostResult:
    """How the process of one host ended."""

    returncode: int
    stdout: str
    stderr: str


def _token_bucket(rate: str, lossy: bool) -> str:
    """Return the options of the queue that limits a link to ``rate``."""
    bytes_per_s = EmulatedLink.parse(rate).bytes_per_s
    least, most = _BURST_NBYTES
    burst = round(min(max(bytes_per_s * _BURST_S, least), most))
    queued = _LOSSY_NBYTES if lossy else round(burst + bytes_per_s * _QUEUED_S)
    return f"rate {round(8 * bytes_per_s)}bit burst {burst} limit {queued}"


def supported() -> str | None:
    """Return why this machine cannot have emulated hosts, None where it can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found: install iproute2"
    try:
        with EmulatedHosts(2):
            return None
    except OSError as error:
        return f"the kernel refuses: {error}"


class EmulatedHosts:
    """Hosts joined by a switch, for the length of a ``with`` block.

    Args:
        count: number of hosts, at most 250.
        rate: of each host's link in each direction, as ``tc`` writes it; None: no
            limit.

    Raises:
        OSError: on entering; a command failed. Nothing is left behind.
    """

    def __init__(self, count: int, rate: str | None = "1gbit") -> None:
        self.count = count
        self.rate = rate
        name = f"{_PREFIX}-{os.getpid()}-{secrets.token_hex(2)}"
        self._switch = f"{name}-switch"
        self._hosts = [f"{name}-host{i}" for i in range(count)]
        self._cleanup = contextlib.ExitStack()

    @property
    def addresses(self) -> list[str]:
        """The hosts' IP addresses."""
        return [f"{_SUBNET}.{i + 1}" for i in range(self.count)]

    def __enter__(self) -> EmulatedHosts:
        """Build the hosts."""
        _remove_orphans()
        with contextlib.ExitStack() as stack:
            self._add_namespace(stack, self._switch)
            _run(f"ip -n {self._switch} link add switch type bridge")
            _run(f"ip -n {self._switch} link set switch up")
            for i, host in enumerate(self._hosts):
                self._add_namespace(stack, host)
                self._plug_in(host, i)
            self.set_rate(self.rate)
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        """End what still runs on the hosts and remove them."""
        self._cleanup.close()

    def set_rate(self, rate: str | None, *, lossy: bool = False) -> None:
        """Limit every link to ``rate`` from now on; None: lift the limit.

        Args:
            rate: of each link in each direction.
            lossy: queues are so short that some packets of every longer message are
                dropped and have to be sent again.

        Raises:
            InputError: this is no rate.
        """
        limit = "" if rate is None else _token_bucket(rate, lossy)
        for i, host in enumerate(self._hosts):
            for namespace, device in ((host, _INTERFACE), (self._switch, f"port{i}")):
                qdisc = f"tc -n {namespace} qdisc"
                if rate is not None:
                    _run(f"{qdisc} replace dev {device} root tbf {limit}")
                elif "tbf" in _run(f"{qdisc} show dev {device}"):
                    _run(f"{qdisc} del dev {device} root")
        self.rate = rate

    def interface_bytes(self) -> list[tuple[int, int]]:
        """Return each host's bytes (received, sent) since the start, with headers."""
        counters = []
        for host in self._hosts:
            shown = _run(f"ip -n {host} -json -s link show dev {_INTERFACE}")
            both = json.loads(shown)[0]["stats64"]
            counters.append((both["rx"]["bytes"], both["tx"]["bytes"]))
        return counters

    def tcp_segments(self) -> tuple[int, int]:
        """Return how many TCP segments all hosts sent, and how many of them again."""
        sent = again = 0
        for host in self._hosts:
            lines = _run(f"ip netns exec {host} cat /proc/net/snmp").splitlines()
            names, values = (line.split() for line in lines if line.startswith("Tcp:"))
            counters = dict(zip(names, values, strict=True))
            sent += int(counters["OutSegs"])
            again += int(counters["RetransSegs"])
        return sent, again

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 300.0,
        port: int = _PORT,
    ) -> list[HostResult]:
        """Run ``argv`` once on each host, host i as rank i, and wait for all.

        Args:
            argv: a command.
            env: variables to set beside torchrun's, ``GLOO_SOCKET_IFNAME``,
                ``NCCL_SOCKET_IFNAME`` and ``OMP_NUM_THREADS``, which are set here.
            timeout_s: after so many seconds all are killed.
            port: where the ranks meet on host 0.

        Returns:
            The results by host.

        Raises:
            TimeoutError: they did not end in time; it holds the end of their output.
        """
        with contextlib.ExitStack() as stack:
            outputs = [stack.enter_context(_two_files()) for _ in self._hosts]
            processes: list[Process] = []
            stack.callback(lambda: end_processes(processes))
            for i, (stdout, stderr) in enumerate(outputs):
                processes.append(
                    start_process(
                        ["ip", "netns", "exec", self._hosts[i], *argv],
                        {**os.environ, **self._variables(i, port), **(env or {})},
                        stdout=stdout,
                        stderr=stderr,
                    )
                )
            if not wait_until_ended(processes, timeout_s):
                tails = [_text(stderr)[-300:] for _, stderr in outputs]
                raise TimeoutError(f"no end after {timeout_s:g} s; stderr: {tails}")
            return [
                HostResult(process.returncode, _text(stdout), _text(stderr))
                for process, (stdout, stderr) in zip(processes, outputs, strict=True)
            ]

    def _variables(self, host: int, port: int) -> dict[str, str]:
        return {
            "RANK": str(host),
            "WORLD_SIZE": str(self.count),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": self.addresses[0],
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": _INTERFACE,
            "NCCL_SOCKET_IFNAME": _INTERFACE,
            # The hosts share this machine's cores; threads that wait would take them.
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // self.count)),
            # Addresses without names make torch warn about each connection.
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }

    def _add_namespace(self, stack: contextlib.ExitStack, namespace: str) -> None:
        _run(f"ip netns add {namespace}")
        stack.callback(_remove, namespace)

    def _plug_in(self, host: str, i: int) -> None:
        switch = f"ip -n {self._switch} link"
        _run(f"{switch} add port{i} type veth peer name {_INTERFACE} netns {host}")
        _run(f"{switch} set port{i} master switch up")
        _run(f"ip -n {host} addr add {self.addresses[i]}/24 dev {_INTERFACE}")
        _run(f"ip -n {host} link set {_INTERFACE} up")
        _run(f"ip -n {host} link set lo up")


def _run(command: str) -> str:
    """Return what ``command`` prints.

    Raises:
        OSError: it failed.
    """
    done = subprocess.run(command.split(), capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"`{command}` failed: {' '.join(done.stderr.split())}")
    return done.stdout


def _remove(namespace: str) -> None:
    for pid in _run(f"ip netns pids {namespace}").split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _run(f"ip netns del {namespace}")


def _remove_orphans() -> None:
    """Remove the namespaces of processes that were killed."""
    for line in _run("ip netns list").splitlines():
        namespace = line.split()[0]
        if namespace.startswith(f"{_PREFIX}-"):
            owner = namespace.removeprefix(f"{_PREFIX}-").split("-")[0]
            if not Path(f"/proc/{owner}").exists():
                with contextlib.suppress(OSError):  # somebody else was faster
                    _remove(namespace)


@contextlib.contextmanager
def _two_files() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        yield stdout, stderr


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
