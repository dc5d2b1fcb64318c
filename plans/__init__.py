"""The documents that pass between the verbs, and nothing else."""

from pathlib import Path

from comm_plan.errors import DocumentError, one_line
from comm_plan.plans.compression import (
    METHODS,
    SPECS,
    Bf16,
    CompressorSpec,
    Dense,
    DoubleSqueeze,
    Fp16,
    Hybrid,
    ModelTopK,
    PartitionTopK,
    PowerSgd,
    Qsgd,
    SparDL,
    Spec,
    Strom,
    TernGrad,
    TopK,
    Vgc,
    method,
    selected,
)
from comm_plan.plans.document import Document, parse_object, without
from comm_plan.plans.files import check_writable, read_text, write_atomically
from comm_plan.plans.link import EmulatedLink
from comm_plan.plans.local import LocalSteps
from comm_plan.plans.network import CollectiveCost, Fit, Network, Sample, Segment
from comm_plan.plans.plan import (
    Bucket,
    Inputs,
    Plan,
    PlannedModel,
    Predicted,
    as_plan,
    load_plan,
)
from comm_plan.plans.problems import LONGEST_VALUE
from comm_plan.plans.profile import (
    DTYPE_NBYTES,
    CompressionCost,
    Contention,
    Device,
    Model,
    PhaseRates,
    Profile,
    Rates,
    Spread,
    TensorTiming,
    fingerprint,
)
from comm_plan.plans.run import (
    BucketTraffic,
    Evaluation,
    Following,
    IterationTimes,
    Replan,
    RunRecord,
    Traffic,
)
from comm_plan.plans.timing import BucketTiming, Timing
from comm_plan.plans.tuning import Curve, Round, Trial, Tuning


def load_document(path: str | Path) -> Document:
    """Read the document of whatever kind in the file at ``path``.

    Raises:
        DocumentError: the file is missing, or no valid document of any kind.
    """
    text = read_text(path)  # once: a pipe has nothing more
    schema = parse_object(text, str(path)).get("schema")
    for kind in DOCUMENTS:
        if schema == kind.SCHEMA:
            return kind.from_json(text, source=str(path))
    if schema is None:
        raise without("schema", str(path))
    known = ", ".join(kind.SCHEMA for kind in DOCUMENTS)
    stated = one_line(repr(schema), LONGEST_VALUE)
    raise DocumentError(f"{path}: schema {stated} is none of {known}")


DOCUMENTS: tuple[type[Document], ...] = (Profile, Network, Plan, RunRecord, Tuning)
"""Every kind of document; each has a JSON Schema in ``plans/schemas``."""

__all__ = [
    "DOCUMENTS",
    "DTYPE_NBYTES",
    "METHODS",
    "SPECS",
    "Bf16",
    "Bucket",
    "BucketTiming",
    "BucketTraffic",
    "CollectiveCost",
    "CompressionCost",
    "CompressorSpec",
    "Contention",
    "Curve",
    "Dense",
    "Device",
    "Document",
    "DoubleSqueeze",
    "EmulatedLink",
    "Evaluation",
    "Fit",
    "Following",
    "Fp16",
    "Hybrid",
    "Inputs",
    "IterationTimes",
    "LocalSteps",
    "Model",
    "ModelTopK",
    "Network",
    "PartitionTopK",
    "PhaseRates",
    "Plan",
    "PlannedModel",
    "PowerSgd",
    "Predicted",
    "Profile",
    "Qsgd",
    "Rates",
    "Replan",
    "Round",
    "RunRecord",
    "Sample",
    "Segment",
    "SparDL",
    "Spec",
    "Spread",
    "Strom",
    "TensorTiming",
    "TernGrad",
    "Timing",
    "TopK",
    "Traffic",
    "Trial",
    "Tuning",
    "Vgc",
    "as_plan",
    "check_writable",
    "fingerprint",
    "load_document",
    "load_plan",
    "method",
    "selected",
    "write_atomically",
]
