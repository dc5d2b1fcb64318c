"""Plan and tune the communication of distributed deep learning.

Importing this package is cheap: PyTorch is loaded only when a name that needs it
(such as :func:`parallelize`) is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "adapt",
    "compile_blocks",
    "connect",
    "ddp_hook",
    "ddp_options",
    "load_plan",
    "parallelize",
    "profile",
    "record",
]

if TYPE_CHECKING:
    from comm_plan.plans import load_plan
    from comm_plan.profiler.script import profile
    from comm_plan.runtime.compiled import compile_blocks
    from comm_plan.runtime.entry import parallelize
    from comm_plan.runtime.recording import record
    from comm_plan.runtime.stock_ddp import ddp_hook, ddp_options
    from comm_plan.transports.connect import connect
    from comm_plan.tuner.adaptation import adapt


_HOMES = {
    "adapt": "tuner.adaptation",
    "compile_blocks": "runtime.compiled",
    "connect": "transports.connect",
    "ddp_hook": "runtime.stock_ddp",
    "ddp_options": "runtime.stock_ddp",
    "load_plan": "plans",
    "parallelize": "runtime.entry",
    "profile": "profiler.script",
    "record": "runtime.recording",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
