"""VGC on a network with batch norm: what it leaves out grows while it trains.

The real commands: ``profile``, ``solve --compressor vgc``, ``train``, of ResNet-20 by
micro-batches, on two ranks of this host. The images are scikit-learn's handwritten
digits, enlarged to 32x32 and written as CIFAR-10's binary files, so that the workload
reads them as it would read CIFAR-10::

    python -m comm_plan.benchmarks.growing_ratio --epochs 12

Writes the run records to ``results`` and the picture to ``docs/images``.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from comm_plan.benchmarks.accuracy import NETWORK, PICTURES
from comm_plan.benchmarks.commands import run_verb
from comm_plan.benchmarks.pictures import lines
from comm_plan.benchmarks.tables import RESULTS
from comm_plan.plans import Network, RunRecord, write_atomically

RANKS = 2
BATCH = 16
ALPHAS = (1.0, 1.5, 2.0)
HELD_OUT = 359
WINDOW = 10
"""Steps of which a point of the picture is the mean."""


def write_digits(folder: Path) -> None:
    """Write the digits as CIFAR-10's files."""
    digits = load_digits()
    images = np.kron(digits.images, np.ones((4, 4))) * (255 / 16)
    colours = np.repeat(images.astype(np.uint8).reshape(-1, 1, 1024), 3, axis=1)
    labels = digits.target.astype(np.uint8)[:, None]
    records = np.concatenate([labels, colours.reshape(len(labels), -1)], axis=1)
    shuffled = np.random.default_rng(0).permutation(records)
    parts = np.array_split(shuffled[HELD_OUT:], 5)
    for number, part in enumerate(parts, start=1):
        (folder / f"data_batch_{number}.bin").write_bytes(part.tobytes())
    (folder / "test_batch.bin").write_bytes(shuffled[:HELD_OUT].tobytes())


def trained(folder: Path, alpha: float, epochs: int) -> RunRecord:
    """Return the record of a training under VGC with this ``alpha``."""
    run_verb(
        "solve", "profile.json", "network.json", "--solver", "single",
        "--compressor", "vgc", "--set", f"alpha={alpha}", folder=folder,
    )  # fmt: skip
    run_verb(
        "train", "resnet20", "--plan", "plan.json", "--data", folder,
        "--batch-size", BATCH, "--epochs", epochs, "--lr", 0.05,
        "--lr-schedule", "cosine", "--local-ranks", RANKS, folder=folder,
    )  # fmt: skip
    return RunRecord.load(folder / "run.json")


def ratios(record: RunRecord) -> list[tuple[float, float]]:
    """Return the last step of each window and how much it left out."""
    assert record.traffic is not None
    sent = record.traffic.steps_nbytes
    found: list[tuple[float, float]] = []
    for start in range(0, len(sent) - WINDOW + 1, WINDOW):
        nbytes = sum(sent[start : start + WINDOW])
        found.append((start + WINDOW, record.traffic.dense_nbytes * WINDOW / nbytes))
    return found


def main() -> None:
    """Train by every alpha, and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--alphas", type=float, nargs="+", default=ALPHAS)
    arguments = parser.parse_args()
    curves = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_digits(folder)
        network = {**NETWORK.model_dump(by_alias=True), "world_size": RANKS}
        Network.model_validate(network).save(folder / "network.json")
        run_verb(
            "profile", "resnet20", "--data", folder, "--batch-size", BATCH,
            "--iterations", 20, folder=folder,
        )  # fmt: skip
        for alpha in arguments.alphas:
            record = trained(folder, alpha, arguments.epochs)
            record.save(RESULTS / f"growing-ratio-alpha-{alpha:g}.json")
            last = record.evaluations[-1]
            name = f"alpha {alpha:g}: {last.metric} {100 * last.value:.1f} % at the end"
            curves[name] = ratios(record)
            print(name, [f"{ratio:.3g}" for _, ratio in curves[name][::5]], flush=True)
    picture = lines(
        curves,
        f"VGC, ResNet-20 on digits, {RANKS} ranks",
        x_label="step",
        y_label="ratio: dense bytes over bytes sent",
    )
    write_atomically(PICTURES / "growing-ratio.png", picture)


if __name__ == "__main__":
    main()
