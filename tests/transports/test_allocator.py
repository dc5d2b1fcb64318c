"""Freed memory stays with the process: no page is asked for twice."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import platform, resource
import torch
from comm_plan.transports.allocator import keep_memory

def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

keep_memory(torch.device("cpu"))
for _ in range(10):
    before = pages()
    tensors = [torch.ones(5 * 2**20) for _ in range(4)]
    del tensors
print(platform.libc_ver()[0], pages() - before)
"""
PAGES = 20 * 2**20 * 4 // os.sysconf("SC_PAGE_SIZE")


def pages(**variables):
    """Return how many pages 80 MB take that were allocated and freed before."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment | variables,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    libc, count = done.stdout.split(" ")
    if libc != "glibc":
        pytest.skip("another C library has another allocator")
    return int(count)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it is about glibc")
def test_memory_is_kept():
    assert pages() < PAGES / 100


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it is about glibc")
@pytest.mark.parametrize("variable", [
    {"MALLOC_TRIM_THRESHOLD_": "100000"},
    {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=100000"},
])  # fmt: skip
def test_who_has_decided_is_heard(variable):
    """By these, pieces are the system's own, and taken anew each time."""
    assert pages(**variable) >= 0.9 * PAGES
