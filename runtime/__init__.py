"""Executes a plan: the engine, the trainer, checkpoints."""

from comm_plan.runtime.engine import Engine
from comm_plan.runtime.entry import parallelize

__all__ = ["Engine", "parallelize"]
