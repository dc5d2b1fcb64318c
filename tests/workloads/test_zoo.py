"""Workloads: shards, the registry's models, and that the real ones learn."""

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.errors import WorkloadError
from comm_plan.workloads import WORKLOADS, Workload, load
from comm_plan.workloads.alexnet import AlexNet
from comm_plan.workloads.char_lm import CharGpt, source_text
from comm_plan.workloads.cifarnet import CifarNet
from comm_plan.workloads.data import random_images, shard_indices
from comm_plan.workloads.googlenet import GoogLeNet
from comm_plan.workloads.inception import InceptionV4
from comm_plan.workloads.lenet import LeNet
from comm_plan.workloads.lstm import LstmLanguageModel, random_tokens
from comm_plan.workloads.modes import evaluating
from comm_plan.workloads.resnet import ResNet20, ResNet50
from comm_plan.workloads.vgg import Vgg16, Vgg16Cifar, Vgg16Dropout


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def parameters_of(model_class):
    with torch.device("meta"):
        return sum(p.numel() for p in model_class().parameters())


@pytest.mark.parametrize(
    ("model_class", "published"),
    [
        (ResNet20, 0.27e6),  # He et al., CVPR 2016, Table 6
        (ResNet50, 25.5e6),  # MG-WFBP, section V
        (Vgg16, 138e6),  # Simonyan and Zisserman, Table 2, column D
        (AlexNet, 61e6),  # torchvision's documentation: 61,100,840
        (GoogLeNet, 13.38e6),  # MG-WFBP: "about 13 millions"; Caffe's file: 53.5 MB
        (InceptionV4, 42.7e6),  # timm and Cadene's models: 42.7 million
        (LstmLanguageModel, 66e6),  # Zaremba et al., section 4.1: 66 million
        (Vgg16Cifar, 14.7e6),  # 13 convolutions of Table 1 D, and 512 x 10
        (Vgg16Dropout, 14.7e6 + 512 * 522),  # likewise, and 512 x 512
        (LeNet, 431e3),  # Han et al., "Deep Compression", Table 1
        (CifarNet, 1_068_298),  # TensorFlow's tutorial names this number
    ],
)
def test_models_have_the_published_number_of_parameters(model_class, published):
    assert parameters_of(model_class) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("model_class", "size"),
    [
        (ResNet50, 224),
        (Vgg16, 224),
        (AlexNet, 224),
        (GoogLeNet, 224),
        (InceptionV4, 299),
    ],
)
def test_large_models_map_images_to_a_thousand_logits(model_class, size):
    with torch.device("meta"):
        model = model_class().eval()
        logits = model(torch.empty(2, 3, size, size))
    logits = logits[0] if isinstance(logits, tuple) else logits
    assert logits.shape == (2, 1000)


SMALL = ["resnet20", "vgg16", "vgg16-dropout", "lenet", "cifarnet"]


@pytest.mark.parametrize("name", SMALL)
def test_small_models_give_every_parameter_a_gradient(name):
    workload = load(name, batch_size=2)
    workload.loss(workload.model, next(workload.batches(0, 1, 0, 0))).backward()
    assert all(p.grad.isfinite().all() for p in workload.model.parameters())


def test_lstm_maps_tokens_to_logits_over_its_vocabulary():
    model = LstmLanguageModel(vocabulary=50, hidden=8)
    tokens, successors = next(random_tokens(3)(0, 1, 0, 0))
    assert model(tokens % 50).shape == (*successors.shape, 50)


def test_googlenet_uses_its_auxiliary_classifiers_in_training_only():
    with torch.device("meta"):
        model, images = GoogLeNet(), torch.empty(1, 3, 224, 224)
        assert len(model(images)) == 3
        assert len(model.eval()(images)) == 1


shapes = st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(0, 40))


@given(shapes, st.integers(0, 3), st.integers(0, 2**31))
def test_ranks_get_disjoint_shards_with_as_many_batches_each(shape, epoch, seed):
    world_size, batch_size, surplus = shape
    samples = world_size * batch_size + surplus
    ranks = [
        list(shard_indices(samples, batch_size, rank, world_size, epoch, seed))
        for rank in range(world_size)
    ]
    assert {len(batches) for batches in ranks} == {samples // (world_size * batch_size)}
    seen = [index for batches in ranks for batch in batches for index in batch]
    assert len(seen) == len(set(seen))
    assert set(seen) <= set(range(samples))


@given(shapes, st.integers(0, 2**31))
def test_a_step_of_all_ranks_is_a_step_of_one_with_a_larger_batch(shape, seed):
    world_size, batch_size, surplus = shape
    samples = world_size * batch_size + surplus
    ranks = [
        shard_indices(samples, batch_size, rank, world_size, 0, seed)
        for rank in range(world_size)
    ]
    together = [list(chain(*batches)) for batches in zip(*ranks, strict=True)]
    alone = shard_indices(samples, world_size * batch_size, 0, 1, 0, seed)
    assert together == list(alone)


def test_epochs_and_seeds_order_the_samples_differently():
    def order(epoch, seed):
        return next(shard_indices(100, 100, 0, 1, epoch, seed))

    assert order(0, 0) == order(0, 0)
    orders = {tuple(order(*each)) for each in ((0, 0), (1, 0), (0, 1))}
    assert len(orders) == 3


def test_too_few_samples_for_all_ranks_are_refused():
    with pytest.raises(
        WorkloadError, match="7 samples do not give a batch of 4 to each"
    ):
        next(shard_indices(7, 4, 0, 2, 0, 0))


def test_random_images_differ_between_ranks_and_repeat_for_one():
    make = random_images(2, size=4, classes=3)
    first, second = (next(make(rank, 2, 0, 0))[0] for rank in (0, 1))
    assert not torch.equal(first, second)
    assert torch.equal(first, next(make(0, 2, 5, 0))[0])


@pytest.mark.parametrize("name", ["digits", "char-lm", "resnet20"])
def test_the_seed_fixes_the_initial_model_and_leaves_the_callers_numbers_alone(name):
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    same, again, other = (load(name, seed=seed).model for seed in (3, 3, 4))
    assert torch.equal(torch.rand(1), expected)
    weights = [
        torch.cat([p.detach().flatten() for p in model.parameters()])
        for model in (same, again, other)
    ]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def train(workload, world_size, epochs, steps=None):
    """Train as ``world_size`` ranks would: on the mean of their gradients."""
    optimizer = workload.optimizer(workload.model.parameters())
    for epoch in range(epochs):
        ranks = (workload.batches(r, world_size, epoch, 0) for r in range(world_size))
        for step, batches in enumerate(zip(*ranks, strict=True)):
            if step == steps:
                return
            optimizer.zero_grad()
            for batch in batches:
                (workload.loss(workload.model, batch) / world_size).backward()
            optimizer.step()


def test_digits_reach_97_percent_on_four_ranks():
    workload = load("digits")
    train(workload, world_size=4, epochs=workload.epochs)
    metric, accuracy = workload.evaluate(workload.model)
    assert metric == "accuracy"
    assert accuracy >= 0.97


def test_char_lm_learns_within_a_few_steps():
    workload = load("char-lm")
    train(workload, world_size=1, epochs=1, steps=25)
    metric, loss = workload.evaluate(workload.model)
    assert metric == "loss"
    assert loss < 3.3  # ln 128 = 4.85 is guessing, 3.3 or so knows the frequencies


def test_char_lm_never_looks_ahead():
    model = CharGpt().eval()
    tokens = torch.randint(128, (1, 20))
    changed = tokens.clone()
    changed[0, 12:] = 7
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.allclose(before[0, :12], after[0, :12], atol=1e-5)
    assert not torch.allclose(before[0, 12:], after[0, 12:], atol=1e-5)


def test_source_text_follows_the_names_and_stops_where_told(tmp_path):
    (tmp_path / "b.py").write_text("second")
    (tmp_path / "a.py").write_text("first ")
    (tmp_path / "c.txt").write_text("never")
    assert source_text(tmp_path, 9) == b"first sec"
    with pytest.raises(WorkloadError, match="holds 12 bytes"):
        source_text(tmp_path, 13)


def test_evaluating_restores_the_mode_of_every_module():
    frozen, model = torch.nn.BatchNorm1d(2).eval(), torch.nn.Sequential()
    model.append(frozen).append(torch.nn.Dropout())
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, False, True]


def test_a_workload_without_samples_is_refused():
    with pytest.raises(WorkloadError, match="batch_size 0"):
        load("digits", batch_size=0)


def test_every_registered_function_exists():
    for name, target in WORKLOADS.items():
        module, function = target.split(":")
        imported = __import__(f"comm_plan.workloads.{module}", fromlist=[function])
        assert callable(getattr(imported, function)), name


def test_workload_names_are_those_of_the_registry():
    assert isinstance(load("digits"), Workload)
    assert load("digits").name == "digits"
    assert load("char_lm").name == "char-lm"
