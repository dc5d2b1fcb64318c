"""Executes a plan: the engine, the trainer, checkpoints."""
