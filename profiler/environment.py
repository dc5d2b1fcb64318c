"""Where a profile was measured."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path

import torch

from comm_plan.errors import InputError
from comm_plan.plans import Device


def usable_device(name: str) -> torch.device:
    """Return the device called ``name``, such as ``cpu``, ``cuda`` or ``cuda:1``.

    Raises:
        InputError: there is no such device here, or it is of another kind.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"device {name!r} is unknown: give cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device {name!r} cannot be profiled: give cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device {name!r} is not here, PyTorch sees {torch.cuda.device_count()} "
            "CUDA devices: give another, or cpu"
        )
    return device


def describe_device(device: torch.device) -> Device:
    """Return the device's type and its product name."""
    if device.type == "cuda":
        return Device(type="cuda", name=torch.cuda.get_device_name(device))
    return Device(type="cpu", name=cpu_name())


def cpu_name() -> str:
    """Return the processor's product name, or its architecture where none is told."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if "model name" in line)
    return next(named, "") or platform.processor() or platform.machine()


def environment(device: torch.device) -> dict[str, str]:
    """Return what of the machine and the software may change the times."""
    facts = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cpu": cpu_name(),
        "cpus": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
    }
    if device.type == "cuda":
        facts["cuda"] = str(torch.version.cuda)
        facts["cudnn"] = str(torch.backends.cudnn.version())
    return facts
