"""How a bucket is compressed: one spec per method, with all that is known of it.

A spec is the ``compressor`` of a bucket in a plan. :mod:`~.spec` says which facts it
must state; a new compressor is its spec here, a line in :data:`SPECS` and one file in
``comm_plan.compressors``.
"""

from comm_plan.plans.compression.dense import Dense
from comm_plan.plans.compression.double_squeeze import DoubleSqueeze
from comm_plan.plans.compression.half import Bf16, Fp16, Half
from comm_plan.plans.compression.powersgd import Matrix, PowerSgd, matrix_of
from comm_plan.plans.compression.qsgd import Qsgd
from comm_plan.plans.compression.registry import (
    BY_DEFAULT,
    KINDS,
    METHODS,
    SPECS,
    CompressorSpec,
    method,
    spec_class,
)
from comm_plan.plans.compression.spec import (
    EQUAL_ON_ALL_RANKS,
    FACTORS,
    FLOAT32_NBYTES,
    INDEX_NBYTES,
    OUTER_MOMENTUM,
    POWERS,
    RESIDUAL,
    VARIANCE,
    VELOCITY,
    EveryElement,
    Spec,
    dealt,
    selected,
)
from comm_plan.plans.compression.terngrad import TernGrad
from comm_plan.plans.compression.topk import (
    ModelTopK,
    PartitionTopK,
    SparDL,
    TopK,
)
from comm_plan.plans.compression.words import Hybrid, Strom, Vgc, Words

__all__ = [
    "BY_DEFAULT",
    "EQUAL_ON_ALL_RANKS",
    "FACTORS",
    "FLOAT32_NBYTES",
    "INDEX_NBYTES",
    "KINDS",
    "METHODS",
    "OUTER_MOMENTUM",
    "POWERS",
    "RESIDUAL",
    "SPECS",
    "VARIANCE",
    "VELOCITY",
    "Bf16",
    "CompressorSpec",
    "Dense",
    "DoubleSqueeze",
    "EveryElement",
    "Fp16",
    "Half",
    "Hybrid",
    "Matrix",
    "ModelTopK",
    "PartitionTopK",
    "PowerSgd",
    "Qsgd",
    "SparDL",
    "Spec",
    "Strom",
    "TernGrad",
    "TopK",
    "Vgc",
    "Words",
    "dealt",
    "matrix_of",
    "method",
    "selected",
    "spec_class",
]
