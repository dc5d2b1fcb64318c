"""What the accuracy benchmark trains: tasks, and every method in up to three forms.

*As printed*: as the method's paper trains it. *Plain*: as ``comm-plan solve`` plans it
unless told otherwise, where that is something else. *With remedies*: with momentum
correction where the optimizer has momentum, and a warm-up of density and learning rate.
Methods that leave nothing behind need no remedy and have one form. *Local steps*: the
ranks average how far they have come, once a round; the end of an epoch, after which all
are evaluated, ends one too. Some of them are trained at higher learning rates as well,
and so is dense.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from comm_plan.benchmarks.resnet20 import RESNET20_MNIST
from comm_plan.runtime.density_warmup import GTOPK_WARMUP

Form = Literal["dense", "as printed", "plain", "with remedies", "local steps", "tuning"]


@dataclass(frozen=True)
class Thresholds:
    """What Strom and the hybrid may have for tau.

    Attributes:
        tried: what they are tuned over.
        printed: what was best as printed.
        corrected: what is best with the remedies.
    """

    tried: tuple[float, ...]
    printed: float
    corrected: float


@dataclass(frozen=True)
class Task:
    """What is trained, and how long.

    Attributes:
        workload: what the commands call it.
        steps: unless others are asked for.
        options: of the workload.
        warmup_epochs: of the form with remedies.
        momentum: whether its optimizer is SGD with momentum.
        thresholds: of Strom and the hybrid; None: they are not trained.
        rates: learning rates above its own that dense and local steps are trained at.
    """

    workload: str
    steps: int
    options: Mapping[str, object]
    warmup_epochs: int
    momentum: bool
    thresholds: Thresholds | None = None
    rates: tuple[float, ...] = ()


TASKS = {
    "digits": Task(
        workload="digits",
        steps=2000,
        options={"batch_size": 32, "augment": True},
        warmup_epochs=20,
        momentum=True,
        thresholds=Thresholds((0.001, 0.003, 0.01, 0.03, 0.1), 0.1, 0.3),
    ),
    "char-lm": Task(
        workload="char-lm",
        steps=2000,
        options={"batch_size": 4},
        warmup_epochs=1,
        momentum=False,
        thresholds=Thresholds((0.0003, 0.001, 0.003, 0.01), 0.003, 0.003),
        rates=(0.006, 0.012),
    ),
    "resnet20-mnist": Task(
        workload=RESNET20_MNIST,
        steps=2000,
        options={"batch_size": 8},
        warmup_epochs=2,
        momentum=True,
    ),
}
"""By the names that tables give them."""

DECAY = "cosine"
"""Of every training's learning rate, so that its end says where it arrives."""

DENSITY = 0.01
WITHOUT_DENSITY = ("vgc alpha 1.5", "strom", "hybrid")
"""Methods with remedies that decide by other means how much they send."""


@dataclass(frozen=True)
class Variant:
    """A method and how it is trained.

    Attributes:
        form: what it stands for.
        solve: options of ``comm-plan solve``.
        density_warmup: densities of the first epochs, or over how many they fall.
        lr_warmup: epochs in which the learning rate rises.
        rate: the learning rate; None: the task's own.
    """

    form: Form
    solve: tuple[str, ...]
    density_warmup: tuple[float, ...] | int = ()
    lr_warmup: float = 0.0
    rate: float | None = None

    @property
    def method(self) -> str | None:
        """For which of ``METHODS`` it is evidence: the forced one, as ours."""
        other = {"as_printed=True", "--local-steps"}  # another algorithm
        if "--compressor" not in self.solve or other.intersection(self.solve):
            return None
        return self.solve[self.solve.index("--compressor") + 1]

    @property
    def remedies(self) -> str:
        """What is done beside compressing, in words."""
        done = []
        if "--momentum-correction" in self.solve:
            done.append("momentum correction")
        if self.density_warmup:
            done.append("density warm-up")
        if self.lr_warmup:
            done.append("learning-rate warm-up")
        return ", ".join(done)


def forced(compressor: str, **options: object) -> tuple[str, ...]:
    """Return the options of ``solve`` for one compressor everywhere."""
    pairs = [word for k, v in options.items() for word in ("--set", f"{k}={v}")]
    return ("--solver", "single", "--compressor", compressor, *pairs)


def variants(task: Task) -> dict[str, Variant]:
    """Return everything to train, by name; dense is the first."""
    every = {"dense": Variant("dense", ("--solver", "single"))}
    every |= {name: Variant("as printed", solve) for name, solve in quantised().items()}
    every |= as_printed(task) | plain() | with_remedies(task) | local()
    return every | at_rates(task, every)


def quantised() -> dict[str, tuple[str, ...]]:
    """Return the methods that send every element in every step."""
    return {
        "fp16": forced("fp16"),
        "bf16": forced("bf16"),
        "qsgd 4 bits": forced("qsgd", bits=4),
        "qsgd 2 bits": forced("qsgd", bits=2),
        "terngrad": forced("terngrad"),
        "terngrad-allreduce": forced("terngrad-allreduce"),
    }


def as_printed(task: Task) -> dict[str, Variant]:
    """Return the methods that hold elements back, as their papers train them.

    Strom and the hybrid have the best tau of those tried.
    """
    found = {
        "powersgd rank 2": Variant("as printed", forced("powersgd", rank=2)),
        "powersgd rank 4": Variant("as printed", forced("powersgd", rank=4)),
        "powersgd rank 8": Variant("as printed", forced("powersgd", rank=8)),
        "topk 1 %": Variant("as printed", forced("topk", density=DENSITY)),
        "gtopk 1 %": Variant(
            "as printed",
            forced("model-gtopk", density=DENSITY, as_printed=True),
            density_warmup=GTOPK_WARMUP,
            lr_warmup=len(GTOPK_WARMUP),
        ),
        "topk 1 %, whole model": Variant(
            "as printed", forced("model-topk", density=DENSITY)
        ),
        "lags, c <= 100": Variant(
            "as printed", ("--solver", "lags", "--max-ratio", "100", "--literal")
        ),
    }
    if task.thresholds is not None:
        for kind in ("strom", "hybrid"):
            solve = forced(kind, tau=task.thresholds.printed)
            found[kind] = Variant("as printed", solve)
    for alpha in (1, 1.5, 2):
        found[f"vgc alpha {alpha}"] = Variant(
            "as printed", forced("vgc", alpha=alpha, as_printed=True)
        )
    return found


def plain() -> dict[str, Variant]:
    """Return what is planned without a word more, and is not as in its paper."""
    return {
        **{
            f"powersgd by layer, bytes of {rank}": Variant(
                "plain", forced("powersgd", bytes_of=rank)
            )
            for rank in (2, 4)
        },
        **{
            f"doublesqueeze {bits} bits": Variant(
                "plain", forced("doublesqueeze", bits=bits)
            )
            for bits in (3, 4)
        },
        "gtopk 1 %, plain": Variant("plain", forced("gtopk", density=DENSITY)),
        "spardl 1 %, plain": Variant("plain", forced("spardl", density=DENSITY)),
        "topk 5 %, plain": Variant("plain", forced("topk", density=5 * DENSITY)),
        "topk 20 %, plain": Variant("plain", forced("topk", density=20 * DENSITY)),
        "vgc alpha 1.5, plain": Variant("plain", forced("vgc", alpha=1.5)),
    }


def with_remedies(task: Task) -> dict[str, Variant]:
    """Return the sparse methods with the remedies for what they send late."""
    correction = ("--momentum-correction",) if task.momentum else ()
    solves = {
        "topk 1 %": (*forced("topk", density=DENSITY), *correction),
        "gtopk 1 %": (*forced("gtopk", density=DENSITY), *correction),
        "gtopk 4 %": (*forced("gtopk", density=4 * DENSITY), *correction),
        "spardl 1 %": (*forced("spardl", density=DENSITY), *correction),
        "partition-topk 1 %": (
            *forced("partition-topk", density=DENSITY),
            *correction,
        ),
        "vgc alpha 1.5": (*forced("vgc", alpha=1.5), *correction),
        "lags, c <= 100": ("--solver", "lags", "--max-ratio", "100", *correction),
    }
    if task.thresholds is not None:
        for kind in ("strom", "hybrid"):
            tau = task.thresholds.corrected
            solves[kind] = (*forced(kind, tau=tau), *correction)
    return {
        f"{name}, with remedies": Variant(
            "with remedies",
            solve,
            density_warmup=() if name in WITHOUT_DENSITY else task.warmup_epochs,
            lr_warmup=task.warmup_epochs,
        )
        for name, solve in solves.items()
    }


def local() -> dict[str, Variant]:
    """Return rounds of local steps, dense and compressed, averaged and as DiLoCo's."""

    def rounds(steps: int, *solve: str) -> Variant:
        return Variant("local steps", (*solve, "--local-steps", str(steps)))

    dense, squeezed = ("--solver", "single"), forced("doublesqueeze")
    return {
        "4 local steps": rounds(4, *dense),
        **{
            f"{steps} local steps, doublesqueeze 4 bits": rounds(steps, *squeezed)
            for steps in (4, 8, 16)
        },
        "16 local steps, DiLoCo": rounds(
            16, *dense, "--outer-lr", "0.7", "--outer-momentum", "0.9"
        ),
    }


def at_rates(task: Task, variants: Mapping[str, Variant]) -> dict[str, Variant]:
    """Return dense and rounds of 4 steps of ``variants`` at the higher rates."""
    names = ("dense", "4 local steps", "4 local steps, doublesqueeze 4 bits")
    return {
        f"{name}, rate {rate}": replace(variants[name], rate=rate)
        for rate in task.rates
        for name in names
    }


def tuning(task: Task) -> dict[str, Variant]:
    """Return Strom and hybrid at every tau to try."""
    if task.thresholds is None:
        return {}
    return {
        f"{kind} tau {tau}": Variant("tuning", forced(kind, tau=tau))
        for kind in ("strom", "hybrid")
        for tau in task.thresholds.tried
    }
