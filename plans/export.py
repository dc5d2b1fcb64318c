"""A plan as a file of Python for clusters that stay with PyTorch DDP or Horovod.

Both can merge as a plan says and cast to 16 bits; they cannot compress further, nor one
bucket otherwise than another. The file needs no comm-plan where it is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from comm_plan.errors import InputError
from comm_plan.plans.compression.rows import Rows
from comm_plan.plans.plan import Plan

DDP = '''"""PyTorch DDP that merges gradients as a plan of comm-plan says.

    model = wrap(model)
"""

{imports}from torch.nn.parallel import DistributedDataParallel

MODEL = {model}
BUCKETS = {buckets}

MIB = 2**20


def wrap(model, **options):
    """Return ``model`` in DDP (torch 2.13 or newer); ``options`` are DDP's own."""
    parameters = planned(model)
    buckets = [[parameters[name] for name in bucket] for bucket in BUCKETS]
    if len({{(p.dtype, p.device) for bucket in buckets for p in bucket}}) > 1:
        raise ValueError(
            "DDP cannot do what the plan says: it merges the parameters of each dtype "
            "and device by themselves; make them alike, or use comm-plan's engine"
        )
{check}    caps = [sum(p.nbytes for p in bucket) / MIB for bucket in buckets]
    wrapped = DistributedDataParallel(model, bucket_cap_mb_list=caps, **options)
{hook}    return wrapped


{planned}'''
IMPORT_HOOKS = "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
IMPORT_TORCH = "import torch\n"
CHECK_BF16 = """    built_for_gpus = torch.version.cuda or torch.version.hip
    if not (built_for_gpus or torch.xpu.is_available()):
        raise ValueError(
            f"DDP of torch {torch.__version__}, which is built for no GPU, cannot cast "
            "to bf16: export a plan of fp16, or use comm-plan's engine"
        )
"""

DDP_KINDS = ("dense", "fp16", "bf16")
"""What DDP can do of the compressors."""


def ddp_hook_name(kind: str) -> str:
    """Return which of torch's communication hooks casts to ``kind``."""
    return f"{kind}_compress_hook"


HOROVOD = '''"""Horovod that merges gradients as a plan of comm-plan says.

    optimizer = wrap(optimizer, model)
"""

import horovod.torch as hvd

MODEL = {model}
BUCKETS = {buckets}


def wrap(optimizer, model, **options):
    """Return ``optimizer`` in Horovod's; ``options`` are Horovod's own."""
    parameters = planned(model)
    return hvd.DistributedOptimizer(
        optimizer,
        named_parameters=parameters.items(),
        groups=[[parameters[name] for name in bucket] for bucket in BUCKETS],
        compression=hvd.Compression.{compression},
        **options,
    )


{planned}'''

PLANNED = '''def planned(model):
    """Return the parameters by name; raise ValueError unless they are the plan's."""
    parameters = dict(model.named_parameters())
    trainable = {name for name, p in parameters.items() if p.requires_grad}
    differing = sorted(trainable ^ {name for bucket in BUCKETS for name in bucket})
    if differing:
        raise ValueError(
            f"this plan of {MODEL} is for another model, they differ in "
            f"{', '.join(differing)}: profile it, and solve again"
        )
    return parameters
'''
"""What both files end with: neither would say that a plan is for another model."""


def to_ddp(plan: Plan) -> str:
    """Return a module whose ``wrap(model)`` makes DDP follow ``plan``.

    From the second iteration on, when DDP has seen in which order gradients get ready.
    ``wrap`` raises a ValueError where the parameters are not the plan's, or are of
    several dtypes or devices, or where torch is built for no GPU and the plan casts to
    bf16.

    Raises:
        InputError: DDP cannot do what the plan says.
    """
    kind = only_kind(plan, "DDP", DDP_KINDS)
    imports = check = hook = ""
    if kind == "bf16":
        imports, check = IMPORT_TORCH, CHECK_BF16
    if kind != "dense":
        imports += IMPORT_HOOKS
        name = f"default_hooks.{ddp_hook_name(kind)}"
        hook = f"    wrapped.register_comm_hook(None, {name})\n"
    return DDP.format(
        model=_literal(plan.model.name),
        buckets=_buckets(plan),
        imports=imports,
        check=check,
        hook=hook,
        planned=PLANNED,
    )


def to_horovod(plan: Plan) -> str:
    """Return a module whose ``wrap(optimizer, model)`` makes Horovod follow ``plan``.

    ``wrap`` raises a ValueError where the parameters are not the plan's.

    Raises:
        InputError: Horovod cannot do what the plan says.
    """
    kind = only_kind(plan, "Horovod", ("dense", "fp16"))
    return HOROVOD.format(
        model=_literal(plan.model.name),
        buckets=_buckets(plan),
        compression="none" if kind == "dense" else kind,
        planned=PLANNED,
    )


EXPORTS: dict[str, Callable[[Plan], str]] = {"ddp": to_ddp, "horovod": to_horovod}
"""Who can follow a plan without comm-plan."""


def only_kind(plan: Plan, who: str, able: tuple[str, ...]) -> str:
    """Return the kind of compressor that all buckets of ``plan`` have.

    Args:
        plan: the plan.
        who: shall follow it.
        able: the kinds that it can do.

    Raises:
        InputError: it cannot do what the plan says.
    """
    if plan.local_steps is not None:
        raise InputError(
            f"{who} averages every gradient, and the plan has local steps: use "
            "comm_plan.parallelize, or solve without"
        )
    sparse = [b.tensors[0] for b in plan.buckets if isinstance(b.compressor, Rows)]
    if sparse:
        raise InputError(
            f"{who} cannot follow a plan for sparse gradients, such as that of "
            f"{sparse[0]}: use comm_plan.parallelize, or build the layer with "
            "sparse=False and profile again"
        )
    kinds = sorted({bucket.compressor.kind for bucket in plan.buckets})
    beyond = [kind for kind in kinds if kind not in able]
    if beyond:
        raise InputError(
            f"{who} cannot compress by {', '.join(beyond)}: use comm_plan.parallelize, "
            "or solve with --solver optimal, dense or --compressor fp16"
        )
    if len(kinds) > 1:
        raise InputError(
            f"{who} compresses all buckets alike, the plan by {', '.join(kinds)}: use "
            "comm_plan.parallelize, or solve with --compressor"
        )
    return kinds[0]


def _buckets(plan: Plan) -> str:
    return _literal([list(bucket.tensors) for bucket in plan.buckets])


def _literal(value: object) -> str:
    """Return Python for a text, or lists of texts: JSON is that too, unescaped."""
    return json.dumps(value, indent=4, ensure_ascii=False)
