"""Data sets as their authors publish them, read from a folder where a user has them.

=========  ==============================  ============================================
data set   files                           format
=========  ==============================  ============================================
CIFAR-10   ``data_batch_1.bin`` to         "binary version": records of a byte for the
           ``data_batch_5.bin``,           label and 3072 for the pixels, 32x32 red,
           ``test_batch.bin``              then green, then blue
MNIST      ``train-images-idx3-ubyte``,    IDX: 0, 0, 8, the number of dimensions, each
           ``train-labels-idx1-ubyte``,    dimension as 4 bytes, big end first, then
           the same with ``t10k``          the bytes; also gzipped (``.gz``)
PTB        ``ptb.train.txt``,              text: a sentence a line, words separated by
           ``ptb.valid.txt``               spaces
=========  ==============================  ============================================

They may lie in the folder itself or where their archives put them beneath it. Nothing
is downloaded.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from comm_plan.errors import WorkloadError

CIFAR_IMAGE = (3, 32, 32)
MNIST_IMAGE = (28, 28)
CLASSES = 10
IDX_UINT8 = 8
END_OF_SENTENCE = "<eos>"
UNKNOWN = "<unk>"


@dataclass(frozen=True)
class Format:
    """What a data set's files are called by people, and where archives put them."""

    name: str
    beneath: tuple[str, ...]

    def find(self, folder: Path, file: str) -> Path:
        """Return the path of ``file``, or of the same gzipped.

        Raises:
            WorkloadError: it is not there.
        """
        places = [folder, *(folder / name for name in self.beneath)]
        for place in places:
            for path in (place / file, place / f"{file}.gz"):
                if path.is_file():
                    return path
        looked = ", ".join(map(str, places))
        raise WorkloadError(
            f"--data {folder}: there is no {file} ({self.name}) in any of {looked}: "
            "give the folder that holds the data set"
        )


CIFAR10 = Format("CIFAR-10, binary version", ("cifar-10-batches-bin",))
MNIST = Format("MNIST, IDX format, plain or .gz", ("MNIST/raw", "mnist"))
PTB = Format("Penn Treebank, text", ("simple-examples/data", "ptb", "data"))


@dataclass(frozen=True)
class Labelled:
    """Images and what they show.

    Attributes:
        images: [N, channels, height, width], of any dtype.
        labels: int64 [N].
    """

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.labels)


def cifar10(folder: Path) -> tuple[Labelled, Labelled]:
    """Return CIFAR-10's training and test images, [N, 3, 32, 32].

    Raises:
        WorkloadError: a file is missing or is none of the binary version.
    """
    training = [_cifar_batch(folder, f"data_batch_{n}.bin") for n in range(1, 6)]
    images = torch.cat([batch.images for batch in training])
    labels = torch.cat([batch.labels for batch in training])
    return Labelled(images, labels), _cifar_batch(folder, "test_batch.bin")


def _cifar_batch(folder: Path, file: str) -> Labelled:
    path = CIFAR10.find(folder, file)
    content = _read(path)
    record = 1 + prod(CIFAR_IMAGE)
    if not content or len(content) % record:
        raise WorkloadError(
            f"{path}: {len(content)} bytes are no records of {record}: take CIFAR-10's "
            "binary version, not the one for Python or Matlab"
        )
    records = _bytes(content).view(-1, record)
    labels = records[:, 0].long()
    _check_labels(labels, path, "CIFAR-10, not CIFAR-100")
    return Labelled(records[:, 1:].reshape(-1, *CIFAR_IMAGE), labels)


def _check_labels(labels: torch.Tensor, path: Path, instead: str) -> None:
    """Raise WorkloadError if one is beyond those that the models tell apart."""
    if labels.max() >= CLASSES:
        raise WorkloadError(
            f"{path}: a label is {labels.max()}, above {CLASSES - 1}: take {instead}"
        )


def mnist(folder: Path) -> tuple[Labelled, Labelled]:
    """Return MNIST's training and test images, [N, 1, 28, 28].

    Raises:
        WorkloadError: a file is missing, or is no IDX file of such dimensions or
            labels.
    """
    return _idx_pair(folder, "train"), _idx_pair(folder, "t10k")


def _idx_pair(folder: Path, part: str) -> Labelled:
    path = MNIST.find(folder, f"{part}-images-idx3-ubyte")
    images = _idx(path, 3)
    if not len(images) or images.shape[1:] != MNIST_IMAGE:
        raise WorkloadError(
            f"{path}: its shape is {list(images.shape)}: take MNIST as it is "
            "published, images of 28x28"
        )
    path = MNIST.find(folder, f"{part}-labels-idx1-ubyte")
    labels = _idx(path, 1).long()
    if len(images) != len(labels):
        raise WorkloadError(f"{path}: {len(labels)} labels for {len(images)} images")
    _check_labels(labels, path, "MNIST's own labels")
    return Labelled(images.unsqueeze(1), labels)


def _idx(path: Path, dimensions: int) -> torch.Tensor:
    """Return the bytes of an IDX file in its shape."""
    content, header = _read(path), 4 + 4 * dimensions
    if content[:4] == bytes([0, 0, IDX_UINT8, dimensions]) and len(content) >= header:
        shape = struct.unpack(f">{dimensions}I", content[4:header])
        if len(content) == header + prod(shape):
            return _bytes(content)[header:].view(shape)
    raise WorkloadError(
        f"{path}: is no IDX file of bytes in {dimensions} dimensions, or is cut off: "
        "take MNIST as it is published"
    )


def ptb(folder: Path) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return the words of PTB's training and validation texts, and how many differ.

    Words are numbered by how often they are in the training text, the most frequent
    first; one that is not there is ``<unk>``. Sentences end with a word of their own.

    Raises:
        WorkloadError: a file is missing or is no text.
    """
    training, held_out = (
        _words(PTB.find(folder, f"ptb.{part}.txt")) for part in ("train", "valid")
    )
    counts = Counter(training) | Counter([UNKNOWN])
    numbers = {word: number for number, (word, _) in enumerate(counts.most_common())}
    return (
        torch.tensor([numbers[word] for word in training]),
        torch.tensor([numbers.get(word, numbers[UNKNOWN]) for word in held_out]),
        len(numbers),
    )


def _words(path: Path) -> list[str]:
    try:
        lines = _read(path).decode().splitlines()
    except UnicodeDecodeError:
        raise WorkloadError(f"{path}: is no text: take PTB's {path.name}") from None
    return [word for line in lines for word in (*line.split(), END_OF_SENTENCE)]


def _read(path: Path) -> bytes:
    """Return what is in a file, unpacked.

    Raises:
        WorkloadError: it cannot be read.
    """
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise WorkloadError(f"{path}: cannot be read: {error}") from None


def _bytes(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
