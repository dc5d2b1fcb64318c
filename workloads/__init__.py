"""Ready-made workloads, and the way to load anybody's own."""

from comm_plan.workloads.base import Workload
from comm_plan.workloads.registry import WORKLOADS, load

__all__ = ["WORKLOADS", "Workload", "load"]
