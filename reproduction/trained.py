"""What the papers measure by training, on the small workload that trains here.

From ``trainings.json``, which :mod:`comm_plan.reproduction.trainings` writes.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

from comm_plan import units
from comm_plan.reproduction.published import DATA, results
from comm_plan.reproduction.ternarised import LAYER
from comm_plan.reproduction.trainings import (
    ALPHAS,
    DENSITIES,
    FILE,
    ZETAS,
    Trained,
    Trainings,
    vgc_name,
)
from comm_plan.reproduction.values import Cell, Chapter, Section, table


def chapter(path: Path = DATA / FILE) -> Chapter:
    """Return what was measured."""
    found = Trainings.read(path)
    where = ", ".join(f"{name} {value}" for name, value in found.context.items())
    source = (
        "Handwritten digits instead of CIFAR-10 and ImageNet, a small network, "
        f"momentum SGD: {where}. Orders and directions can be compared, "
        "accuracies cannot; one seed. gTop-k and VGC as `solve` plans them: they keep "
        "what Algorithm 4 and Fig. 1 lose as printed (see above)"
    )
    gradients = (histograms(found), over_training(found))
    sections = (densities(found), delta(found), *gradients)
    vgc = (sweep(found), course(found))
    return Chapter("By training", source, (*sections, *vgc))


def densities(found: Trainings) -> Section:
    """Return gTop-k's Fig. 12."""
    runs = [found.run("dense"), *(found.run(f"gtopk {d:g}") for d in DENSITIES)]
    head = ("", *_parts(runs[0]), "accuracy", "ratio")
    rows = [
        (run.name, *_curve(run.losses), units.percent(run.accuracy), f"{run.ratio:.3g}")
        for run in runs
    ]
    return Section(
        "gTop-k, Fig. 12: training loss by density",
        "Mean loss of each fifth of the training. In the paper densities down to "
        "0.0005 hardly matter over 140 epochs with warm-up; in a training this short, "
        "with momentum and without warm-up, the lower the density the slower it is.",
        table(head, rows),
    )


def delta(found: Trainings) -> Section:
    """Return LAGS's Fig. 2."""
    rows = []
    for name in ("topk 0.01", *(f"gtopk {d:g}" for d in DENSITIES)):
        deltas = found.run(name).deltas
        kept = sum(value <= 1 for value in deltas) / len(deltas)
        middle, largest = f"{median(deltas):.3f}", f"{max(deltas):.3f}"
        rows.append((name, len(deltas), middle, largest, units.percent(kept)))
    head = ("", "measured", "median", "largest", "at most 1")
    return Section(
        "LAGS, Fig. 2: delta (Eq. 21)",
        "Over all tensors, every tenth step; the random choice is replaced by its "
        "expectation. Assumption 1 holds where delta is at most 1; in the paper it "
        "always is, here with few exceptions.",
        table(head, rows),
    )


def histograms(found: Trainings) -> Section:
    """Return TernGrad's Fig. 2."""
    moments = found.ternarised
    bins = len(moments[0].histogram)
    rows: list[tuple[Cell, ...]] = [
        (
            f"{index / bins:.1f} to {(index + 1) / bins:.1f}",
            *(units.percent(moment.histogram[index]) for moment in moments),
        )
        for index in range(bins)
    ]
    rows.append(
        ("beyond the bound", *(units.percent(moment.beyond) for moment in moments))
    )
    return Section(
        f"TernGrad, Fig. 2: gradients of {LAYER} before ternarising",
        "Share of elements by magnitude, over the bound of 2.5 deviations; the last "
        "tenth holds what is clipped. An element in the middle of a row becomes 0 with "
        "probability 1 less its place. They are no normal distribution, of which "
        "1.2 % would be beyond.",
        table(("", *(f"step {moment.step}" for moment in moments)), rows),
    )


def over_training(found: Trainings) -> Section:
    """Return TernGrad's Fig. 4(c), and clipping, over the training."""
    rows = [
        (
            f"step {moment.step}",
            f"{moment.loss:.3g}",
            units.percent(1 - moment.length),
            f"{moment.angle_degrees:.1f} degrees",
            units.percent(moment.zeros),
            f"{moment.mean_angle_degrees:.1f} degrees",
        )
        for moment in found.ternarised
    ]
    published = units.percent(results("terngrad")["fc6_zeros"])
    head = ("", "loss", "clipping shortens by", "and turns by", "zeros")
    return Section(
        "TernGrad, Fig. 4(c) and section 3.3 over a training",
        f"{LAYER} of rank 0; the last column is the angle between the mean ternary "
        "gradient of all ranks and the true mean. Tails are heavier than normal, so "
        "clipping turns the gradient by several times the printed 2 to 3 degrees, and "
        f"more elements become 0 than the printed {published}.",
        table((*head, "mean, ternary and true"), rows),
    )


def sweep(found: Trainings) -> Section:
    """Return VGC's alpha and zeta."""
    dense = found.run("dense")
    rows = [("dense", f"{dense.losses[-1]:.3g}", units.percent(dense.accuracy), "1")]
    for spec in (*ALPHAS, *ZETAS):
        run = found.run(vgc_name(spec))
        loss = f"{run.losses[-1]:.3g}"
        accuracy = units.percent(run.accuracy)
        rows.append((run.name, loss, accuracy, f"{run.ratio:.3g}"))
    return Section(
        "VGC, Tables 1 and 2: alpha and zeta",
        "Loss of the last fifth, one seed. The ratio grows with alpha as printed. Zeta "
        "of 0.99, which forgets variance sooner, sends sooner; 0.999 and 1 hardly "
        "differ.",
        table(("", "loss", "accuracy", "ratio"), rows),
    )


def course(found: Trainings) -> Section:
    """Return VGC's ratio over a training."""
    runs = [found.run(vgc_name(spec)) for spec in ALPHAS]
    rows = [(run.name, *(f"{ratio:.3g}" for ratio in run.ratios)) for run in runs]
    return Section(
        "VGC: the ratio over the training",
        "Dense bytes over message bytes in each fifth: gradients get small beside "
        "their variance as the training goes on, and the ratio grows.",
        table(("", *_parts(runs[0])), rows),
    )


def _parts(run: Trained) -> list[str]:
    return [f"part {number + 1}" for number in range(len(run.losses))]


def _curve(values: list[float]) -> list[str]:
    return [f"{value:.3g}" for value in values]
