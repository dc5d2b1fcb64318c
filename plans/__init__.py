"""The documents that pass between the verbs, and nothing else."""

from comm_plan.plans.compression import (
    COLLECTIVES_OF,
    Bf16,
    CompressorSpec,
    Dense,
    Fp16,
    Hybrid,
    Qsgd,
    Strom,
    TernGrad,
    TopK,
    Vgc,
    selected,
)
from comm_plan.plans.document import Document, check_writable, write_atomically
from comm_plan.plans.network import CollectiveCost, Fit, Network, Sample, Segment
from comm_plan.plans.plan import (
    Bucket,
    Inputs,
    Plan,
    PlannedModel,
    Predicted,
    load_plan,
)
from comm_plan.plans.profile import (
    DTYPE_NBYTES,
    CompressionCost,
    Device,
    Model,
    Profile,
    Spread,
    TensorTiming,
    UnderCommunication,
    fingerprint,
)
from comm_plan.plans.run import (
    BucketTraffic,
    Evaluation,
    IterationTimes,
    RunRecord,
    Traffic,
)

DOCUMENTS: tuple[type[Document], ...] = (Profile, Network, Plan, RunRecord)
"""Every kind of document; each has a JSON Schema in ``plans/schemas``."""

__all__ = [
    "COLLECTIVES_OF",
    "DOCUMENTS",
    "DTYPE_NBYTES",
    "Bf16",
    "Bucket",
    "BucketTraffic",
    "CollectiveCost",
    "CompressionCost",
    "CompressorSpec",
    "Dense",
    "Device",
    "Document",
    "Evaluation",
    "Fit",
    "Fp16",
    "Hybrid",
    "Inputs",
    "IterationTimes",
    "Model",
    "Network",
    "Plan",
    "PlannedModel",
    "Predicted",
    "Profile",
    "Qsgd",
    "RunRecord",
    "Sample",
    "Segment",
    "Spread",
    "Strom",
    "TensorTiming",
    "TernGrad",
    "TopK",
    "Traffic",
    "UnderCommunication",
    "Vgc",
    "check_writable",
    "fingerprint",
    "load_plan",
    "selected",
    "write_atomically",
]
