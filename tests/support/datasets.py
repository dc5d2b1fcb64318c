"""Small data sets in the formats in which the real ones are published."""

import gzip
import struct

import numpy as np

RANDOM = np.random.default_rng(0)


def write_cifar10(folder, samples=4):
    """Write CIFAR-10's files; return the images and labels of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data_batch_{number}.bin" for number in range(1, 6)]
    made = []
    for name in [*names, "test_batch.bin"]:
        images = RANDOM.integers(256, size=(samples, 3, 32, 32), dtype=np.uint8)
        labels = RANDOM.integers(10, size=samples, dtype=np.uint8)
        records = [
            bytes([label]) + image.tobytes()
            for image, label in zip(images, labels, strict=True)
        ]
        (folder / name).write_bytes(b"".join(records))
        made.append((images, labels))
    return made[0]


def write_mnist(folder, samples=4, zipped=False):
    """Write MNIST's files; return the training images and labels."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for part in ("train", "t10k"):
        images = RANDOM.integers(256, size=(samples, 28, 28), dtype=np.uint8)
        labels = RANDOM.integers(10, size=samples, dtype=np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = struct.pack(
                f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape
            )
            content, name = header + array.tobytes(), f"{part}-{kind}-ubyte"
            if zipped:
                content, name = gzip.compress(content), f"{name}.gz"
            (folder / name).write_bytes(content)
        made.append((images, labels))
    return made[0]


def write_ptb(folder, training, held_out):
    """Write PTB's files with these texts."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ptb.train.txt").write_text(training)
    (folder / "ptb.valid.txt").write_text(held_out)
