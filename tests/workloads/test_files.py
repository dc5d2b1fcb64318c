"""Readers of published data sets, on small files in their formats."""

import struct
from math import prod

import pytest
import torch

from comm_plan.errors import WorkloadError
from comm_plan.tests.support.datasets import write_cifar10, write_mnist, write_ptb
from comm_plan.workloads import files, load


def same(tensor, array):
    return torch.equal(tensor, torch.tensor(array).to(tensor.dtype))


@pytest.mark.parametrize("beneath", ["", "cifar-10-batches-bin"])
def test_cifar10_is_read_record_by_record(tmp_path, beneath):
    images, labels = write_cifar10(tmp_path / beneath)
    training, held_out = files.cifar10(tmp_path)
    assert (len(training), len(held_out)) == (20, 4)
    assert same(training.images[:4], images)
    assert same(training.labels[:4], labels)


@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_is_read_plain_and_gzipped(tmp_path, zipped):
    images, labels = write_mnist(tmp_path / "MNIST" / "raw", zipped=zipped)
    training, held_out = files.mnist(tmp_path)
    assert same(training.images[:, 0], images)
    assert same(training.labels, labels)
    assert held_out.images.shape == (4, 1, 28, 28)


def test_ptb_numbers_words_by_frequency_and_ends_sentences(tmp_path):
    write_ptb(tmp_path, " a b a \n a <unk> \n", "a new b\n")
    training, held_out, vocabulary = files.ptb(tmp_path)
    assert training.tolist() == [0, 2, 0, 1, 0, 3, 1]  # a, <eos>, b, <unk>
    assert held_out.tolist() == [0, 3, 2, 1]
    assert vocabulary == 4


@pytest.mark.parametrize(
    ("name", "write", "missing", "format_"),
    [
        ("resnet20", write_cifar10, "data_batch_3.bin", "CIFAR-10, binary version"),
        ("lenet", write_mnist, "t10k-labels-idx1-ubyte", "MNIST, IDX format"),
        (
            "lstm-ptb",
            lambda folder: write_ptb(folder, "a", "a"),
            "ptb.valid.txt",
            "Penn Treebank",
        ),
    ],
)
def test_a_missing_file_is_named_with_its_format_and_where_it_was_looked_for(
    tmp_path, name, write, missing, format_
):
    write(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(WorkloadError) as refused:
        load(name, data=tmp_path)
    message = str(refused.value)
    assert f"there is no {missing} ({format_}" in message
    assert f"in any of {tmp_path}, {tmp_path}/" in message


def spoilt_cifar(folder, content):
    write_cifar10(folder)
    (folder / "test_batch.bin").write_bytes(content)
    return files.cifar10


def spoilt_mnist(folder, content):
    write_mnist(folder)
    (folder / "train-images-idx3-ubyte").write_bytes(content)
    return files.mnist


def spoilt_labels(folder, content):
    write_mnist(folder)
    (folder / "train-labels-idx1-ubyte").write_bytes(content)
    return files.mnist


def idx(*shape, value=0):
    head = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
    return head + bytes([value]) * prod(shape)


def spoilt_gzip(folder, content):
    write_mnist(folder, zipped=True)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(content)
    return files.mnist


def spoilt_text(folder, content):
    write_ptb(folder, "a", "a")
    (folder / "ptb.train.txt").write_bytes(content)
    return files.ptb


@pytest.mark.parametrize(
    ("spoil", "content", "message"),
    [
        (spoilt_cifar, b"x" * 3072, "3072 bytes are no records of 3073"),
        (spoilt_cifar, b"", "0 bytes are no records of 3073"),
        (spoilt_cifar, b"c" * 3073, "a label is 99, above 9: take CIFAR-10"),
        (spoilt_mnist, b"\0\0\x08\x03" + 12 * b"\1", "is no IDX file of bytes in 3"),
        (spoilt_mnist, b"\0\0\x08\x03", "is no IDX file of bytes in 3"),
        (spoilt_mnist, idx(4, 2, 2), r"its shape is \[4, 2, 2\]: take MNIST"),
        (spoilt_mnist, idx(0, 28, 28), r"its shape is \[0, 28, 28\]: take MNIST"),
        (spoilt_labels, idx(4, value=26), "a label is 26, above 9: take MNIST"),
        (spoilt_gzip, b"plain", "cannot be read"),
        (spoilt_text, b"\xff\xfe", "is no text"),
    ],
)
def test_a_file_in_another_format_is_refused(tmp_path, spoil, content, message):
    read = spoil(tmp_path, content)
    with pytest.raises(WorkloadError, match=message):
        read(tmp_path)


@pytest.mark.parametrize("texts", [("a b\n", "a b\n" * 30), ("a b\n" * 30, "")])
def test_a_text_that_is_cut_off_is_refused(tmp_path, texts):
    write_ptb(tmp_path, *texts)
    with pytest.raises(WorkloadError, match="fewer than the 36 of a window"):
        load("lstm-ptb", data=tmp_path)
