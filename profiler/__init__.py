"""Measures a model on one device, without communication, into a Profile.

Or makes one up: from a device's speed, or from a table of layers.
"""

from comm_plan.profiler.compression import compression_costs
from comm_plan.profiler.layer_times import profile_from_layer_times
from comm_plan.profiler.measure import measure
from comm_plan.profiler.synthetic import profile_from_model, profile_from_speed
from comm_plan.profiler.timings import Measurable

__all__ = [
    "Measurable",
    "compression_costs",
    "measure",
    "profile_from_layer_times",
    "profile_from_model",
    "profile_from_speed",
]
