"""Plan and tune the communication of distributed deep learning.

Importing this package is cheap: PyTorch is loaded only when a name that needs it
(such as :func:`parallelize`) is first used.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "load_plan", "parallelize"]

if TYPE_CHECKING:
    from comm_plan.plans import load_plan
    from comm_plan.runtime import parallelize


def __getattr__(name: str) -> Any:
    if name == "parallelize":
        from comm_plan.runtime import parallelize

        return parallelize
    if name == "load_plan":
        from comm_plan.plans import load_plan

        return load_plan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
