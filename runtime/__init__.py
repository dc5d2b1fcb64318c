"""Executes a plan: the engine, the trainer, checkpoints, ready-made workloads."""

from comm_plan.runtime.engine import Engine, parallelize

__all__ = ["Engine", "parallelize"]
