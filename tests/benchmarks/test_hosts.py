"""Emulated hosts: real TCP between them, limited links, nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from comm_plan.benchmarks import hosts as hosts_module
from comm_plan.benchmarks.hosts import EmulatedHosts, supported
from comm_plan.errors import InputError

REASON = supported()
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]

SEND_TO_HOST_0 = """
import os, socket, sys, time
nbytes = int(sys.argv[1])
meet = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server(meet) as server:
        connection, peer = server.accept()
    with connection:
        got = 0
        while part := connection.recv(65536):
            got += len(part)
    print(got, peer[0], time.monotonic())
else:
    while True:
        try:
            connection = socket.create_connection(meet)
            break
        except OSError:  # nobody listens yet, or the link is not up yet
            time.sleep(0.05)  # attempts are traffic too
    with connection:
        time.sleep(0.1)
        print(time.monotonic())  # the hosts are one machine: one clock
        connection.sendall(bytes(nbytes))
"""
SAVE_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


def python(code, *arguments):
    return [sys.executable, "-S", "-c", code, *map(str, arguments)]


def namespaces():
    """Return the namespaces of this process."""
    shown = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    return [line for line in shown.stdout.splitlines() if f"-{os.getpid()}-" in line]


@pytest.fixture
def two():
    with EmulatedHosts(2, rate="100mbit") as hosts:
        yield hosts


def test_hosts_talk_over_their_interfaces(two):
    nbytes = 200_000
    before = two.interface_bytes()
    receiver, sender = two.run(python(SEND_TO_HOST_0, nbytes), timeout_s=60)
    assert (receiver.returncode, sender.returncode) == (0, 0), receiver.stderr
    assert receiver.stdout.split()[:2] == [str(nbytes), two.addresses[1]]
    after = two.interface_bytes()
    received, sent = after[0][0] - before[0][0], after[1][1] - before[1][1]
    assert nbytes < received < 1.2 * nbytes  # headers
    assert nbytes < sent < 1.2 * nbytes


def test_both_ends_of_each_link_are_limited(two):
    def rates():
        shown = []
        for i, host in enumerate(two._hosts):
            for namespace, device in ((host, "eth0"), (two._switch, f"port{i}")):
                show = ["tc", "-n", namespace, "qdisc", "show", "dev", device]
                shown.append(subprocess.check_output(show, text=True))
        return shown

    assert all("tbf" in shown and "100Mbit" in shown for shown in rates())
    two.set_rate("1gbit")
    assert all("tbf" in shown and "1Gbit" in shown for shown in rates())
    two.set_rate(None)
    assert not any("tbf" in shown for shown in rates())
    two.set_rate(None)
    assert two.rate is None


@pytest.mark.parametrize(("rate", "burst"), [("100mbit", 16), ("1gbit", 128)])
def test_a_message_after_a_pause_is_as_slow_as_the_link(two, rate, burst):
    """But for what fits into the burst; it waits for 0.1 s before it is sent."""
    two.set_rate(rate)
    nbytes = 8 * burst * 1024
    receiver, sender = two.run(python(SEND_TO_HOST_0, nbytes), timeout_s=60)
    took_s = float(receiver.stdout.split()[2]) - float(sender.stdout)
    line_s = 8 * nbytes / {"100mbit": 1e8, "1gbit": 1e9}[rate]
    assert took_s > 0.8 * line_s


def test_short_queues_lose_packets(two):
    def again():
        sent, again = two.tcp_segments()
        results = two.run(python(SEND_TO_HOST_0, 2_000_000), timeout_s=60)
        assert [result.returncode for result in results] == [0, 0]
        sent_later, again_later = two.tcp_segments()
        assert sent_later > sent
        return again_later - again

    two.set_rate("100mbit", lossy=True)
    assert again() > 0
    two.set_rate("100mbit")
    assert again() == 0


def test_each_host_is_one_rank(two):
    results = two.run(python(SAVE_ENVIRONMENT), env={"OURS": "1"}, timeout_s=60)
    ranks = [json.loads(result.stdout) for result in results]
    assert [rank["RANK"] for rank in ranks] == ["0", "1"]
    for rank in ranks:
        assert rank["WORLD_SIZE"] == "2"
        assert rank["LOCAL_RANK"] == "0"
        assert rank["MASTER_ADDR"] == two.addresses[0]
        assert rank["GLOO_SOCKET_IFNAME"] == "eth0"
        assert rank["OURS"] == "1"


def test_what_does_not_end_is_killed_and_reported(two):
    code = "import sys, signal; print('here', file=sys.stderr, flush=True)\n"
    with pytest.raises(TimeoutError, match=r"no end after 1 s.*here"):
        two.run(python(code + "signal.pause()"), timeout_s=1)
    pids = [
        subprocess.check_output(["ip", "netns", "pids", host], text=True)
        for host in two._hosts
    ]
    assert pids == ["", ""]


def test_exit_codes_and_errors_are_kept_by_host(two):
    code = "import os, sys; sys.exit('host ' + os.environ['RANK'])"
    results = two.run(python(code), timeout_s=60)
    assert [result.returncode for result in results] == [1, 1]
    assert [result.stderr.strip() for result in results] == ["host 0", "host 1"]


def test_two_sets_of_hosts_stand_side_by_side():
    with EmulatedHosts(2) as one, EmulatedHosts(2) as other:
        assert set(one._hosts).isdisjoint(other._hosts)
        for hosts in (one, other):
            receiver, _ = hosts.run(python(SEND_TO_HOST_0, 10), timeout_s=60)
            assert receiver.stdout.split()[0] == "10"


def test_nothing_is_left_behind(monkeypatch):
    with pytest.raises(ValueError, match="mine"), EmulatedHosts(2):
        assert len(namespaces()) == 3
        raise ValueError("mine")
    assert namespaces() == []

    with pytest.raises(InputError, match="fast"), EmulatedHosts(2, rate="fast"):
        pass
    assert namespaces() == []


def test_the_hosts_of_a_killed_process_are_removed():
    build = (
        "import os, signal; from comm_plan.benchmarks.hosts import EmulatedHosts\n"
        "with EmulatedHosts(1): os.kill(os.getpid(), signal.SIGKILL)"
    )
    with subprocess.Popen([sys.executable, "-c", build]) as killed:
        killed.wait()
    hosts_module._remove_orphans()
    shown = subprocess.check_output(["ip", "netns", "list"], text=True)
    assert f"-{killed.pid}-" not in shown
