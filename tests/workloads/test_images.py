"""Augmented images: right cuts, and the same for every rank and every resume."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.tests.support.datasets import write_cifar10, write_mnist, write_ptb
from comm_plan.workloads import load
from comm_plan.workloads.files import Labelled, ptb
from comm_plan.workloads.images import Crop, Scale, labelled
from comm_plan.workloads.lstm import LstmLanguageModel, text

IMAGES = torch.arange(6 * 2 * 4 * 4.0).view(6, 2, 4, 4)
WHOLE = Scale(1.0, (0.0, 0.0), (1.0, 1.0))


@given(st.integers(0, 2), st.integers(1, 4), st.booleans(), st.integers(0, 2**31))
def test_a_random_cut_is_one_of_the_padded_image_mirrored_or_not(
    pad, size, mirror, seed
):
    chances = torch.rand(6, 3, generator=torch.Generator().manual_seed(seed))
    cuts = Crop(size, pad, mirror).random(IMAGES, chances)
    padded = torch.nn.functional.pad(IMAGES, (pad,) * 4)
    places = 4 + 2 * pad - size + 1
    for image, cut, (down, right, flip) in zip(padded, cuts, chances, strict=True):
        row, column = int(down * places), int(right * places)
        expected = image[:, row : row + size, column : column + size]
        if mirror and flip < 0.5:
            expected = expected.flip(-1)
        assert torch.equal(cut, expected)


def test_the_largest_chances_stay_inside():
    chances = torch.full((6, 3), 1 - 2**-53, dtype=torch.float64)
    cuts = Crop(2, pad=1).random(IMAGES, chances)
    assert torch.equal(cuts, torch.nn.functional.pad(IMAGES, (1,) * 4)[:, :, 4:, 4:])


def augmented(batch_size):
    data = Labelled(IMAGES, torch.arange(6))
    crop = Crop(3, pad=1, mirror=True)
    return labelled(data, data, batch_size, WHOLE, crop, augment=True).batches


def test_a_sample_is_cut_alike_whichever_rank_gets_it():
    alone = list(augmented(6)(0, 1, 2, 7))
    ranks = [list(augmented(3)(rank, 2, 2, 7)) for rank in range(2)]
    for part in range(2):
        together = [torch.cat([rank[0][part] for rank in ranks])]
        assert torch.equal(torch.cat(together), alone[0][part])


def test_epochs_and_seeds_cut_differently_and_repeat_themselves():
    def cut(epoch, seed):
        ((images, labels),) = augmented(6)(0, 1, epoch, seed)
        return images[labels.argsort()]

    assert torch.equal(cut(1, 0), cut(1, 0))
    assert not torch.equal(cut(1, 0), cut(0, 0))
    assert not torch.equal(cut(1, 0), cut(1, 1))


def test_without_augmentation_and_in_evaluation_the_middle_is_taken():
    seen = []

    class Guess(torch.nn.Linear):
        def forward(self, images):
            seen.append(images)
            return torch.eye(10)[: len(images)]

    data = Labelled(IMAGES, torch.tensor([0, 1, 2, 9, 9, 9]))
    source = labelled(data, data, 6, WHOLE, Crop(2, pad=1), augment=False)
    assert source.evaluate(Guess(1, 1)) == ("accuracy", 0.5)
    ((images, _),) = source.batches(0, 1, 0, 0)
    middle = IMAGES[:, :, 1:3, 1:3]
    assert torch.equal(seen[0], middle)
    assert sorted(images.flatten(1).tolist()) == middle.flatten(1).tolist()


def test_digits_are_augmented_when_asked_only():
    plain, moved = (load("digits", augment=flag) for flag in (False, True))
    (images, labels), (others, same) = (
        next(workload.batches(0, 1, 0, 0)) for workload in (plain, moved)
    )
    assert torch.equal(labels, same)
    assert images.shape == others.shape
    assert not torch.equal(images, others)


def test_published_data_take_the_place_of_random_ones(tmp_path):
    write_cifar10(tmp_path)
    write_mnist(tmp_path)
    for name in ("resnet20", "vgg16", "vgg16-dropout", "cifarnet", "lenet"):
        drawn, read = load(name, batch_size=2), load(name, batch_size=2, data=tmp_path)
        shapes = [
            [part.shape for part in next(workload.batches(0, 1, 0, 0))]
            for workload in (drawn, read)
        ]
        assert shapes[0] == shapes[1]
        assert read.evaluate(read.model)[0] == "accuracy"
        assert drawn.evaluate(drawn.model) is None


def test_the_language_model_reads_windows_of_words(tmp_path):
    write_ptb(tmp_path, "a b c d e f\n" * 40, "a b c d e f\n" * 11)
    training, held_out, vocabulary = ptb(tmp_path)
    source = text(training, held_out, batch_size=3)
    tokens, successors = next(source.batches(0, 1, 0, 0))
    assert tokens.shape == successors.shape == (3, 35)
    assert torch.equal(tokens[:, 1:], successors[:, :-1])
    metric, perplexity = source.evaluate(LstmLanguageModel(vocabulary, hidden=4))
    assert metric == "perplexity"
    assert 4 < perplexity < 12  # 7 words and <unk>, not yet learnt


def test_the_perplexity_of_a_model_that_diverged_is_inf():
    words = torch.arange(200) % 7
    model = LstmLanguageModel(7, hidden=4)
    torch.nn.init.constant_(model.decoder.bias[:1].data, 5000.0)
    assert text(words, words, 2).evaluate(model) == ("perplexity", math.inf)
