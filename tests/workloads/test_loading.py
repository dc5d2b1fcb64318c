"""Loading a user's own workload, and what is said when that fails."""

import copy
import random
import re
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from comm_plan.errors import WorkloadError
from comm_plan.workloads import load
from comm_plan.workloads.user import from_parts

OWN = """
import torch
from torch import nn
from neighbour import CLASSES, MODULE_DREW

def make(batch_size=4):
    model = nn.Linear(3, CLASSES)
    data = [(torch.randn(batch_size, 3), torch.zeros(batch_size, dtype=torch.long))] * 4
    return model, data, nn.CrossEntropyLoss()

def plain():
    return nn.Linear(3, 2)

def draws():
    import random
    import numpy as np
    drawn = [random.random(), np.random.rand(), torch.rand(1).item()]
    return nn.Linear(3, 2), [(torch.tensor(MODULE_DREW + drawn),) * 2], nn.MSELoss()

def fails():
    raise ValueError("no data here\\nat all")
"""

NEIGHBOUR = """
import random
import numpy as np
import torch

CLASSES = 2
MODULE_DREW = [random.random(), np.random.rand(), torch.rand(1).item()]
"""


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbour.py").write_text(NEIGHBOUR)
    file = tmp_path / "own_workload.py"
    file.write_text(OWN)
    yield file
    for name in ("neighbour", "own_workload", "comm_plan_workload_own_workload"):
        sys.modules.pop(name, None)


def test_a_file_is_loaded_with_its_neighbours(own_file):
    workload = load(f"{own_file}:make", batch_size=5)
    assert workload.batch_size == 5
    loss = workload.loss(workload.model, next(workload.batches(0, 2, 0, 0)))
    loss.backward()
    assert workload.model.weight.grad is not None
    assert workload.evaluate(workload.model) is None


def test_a_module_is_found_in_the_working_directory(own_file, monkeypatch):
    monkeypatch.chdir(own_file.parent)
    assert load("own_workload:make").batch_size == 4


def test_the_seed_reaches_a_users_model(own_file):
    one, same, other = (
        load(f"{own_file}:make", seed=s).model.weight for s in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_all_that_a_users_file_draws_comes_from_the_seed(own_file):
    def drawn(seed):
        for name in ("neighbour", "comm_plan_workload_own_workload"):
            sys.modules.pop(name, None)
        (batch,) = load(f"{own_file}:draws", seed=seed).batches(0, 1, 0, 0)
        return batch[0]

    one, same, other = (drawn(seed) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not (one == other).any()


def test_loading_leaves_the_global_random_numbers_alone(own_file):
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    load(f"{own_file}:draws", seed=1)
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digit", "did you mean digits?"),
        ("digit", "known are digits, char-lm, resnet20"),
        ("train.py", "write train.py:FUNCTION"),
        ("profile.json", "write replay:profile.json"),
        ("missing.py:make", "missing.py does not exist"),
        ("no_such_package.at_all:make", "cannot be imported: ModuleNotFoundError"),
        ("{file}:mak", "there is no function 'mak': it has make"),
        ("{file}:fails", "its function failed: ValueError: no data here at all"),
        ("{file}:plain", "returned Linear"),
        ("builtins:dict", "returned dict"),  # which has no signature
    ],
)
def test_what_cannot_be_loaded_is_explained_in_one_line(own_file, name, message):
    with pytest.raises(WorkloadError, match=re.escape(message)) as raised:
        load(name.format(file=own_file))
    assert "\n" not in str(raised.value)


def test_an_import_that_fails_keeps_its_cause(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("1 / 0\n")
    with pytest.raises(WorkloadError, match="ZeroDivisionError") as raised:
        load(f"{file}:make")
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_an_option_that_the_function_does_not_take_is_named(own_file):
    with pytest.raises(WorkloadError, match="batch_size"):
        load(f"{own_file}:plain", batch_size=2)


def criterion(outputs, targets):
    return ((outputs - targets) ** 2).mean()


def test_a_dataloader_is_divided_among_the_ranks():
    rows = torch.arange(10.0).view(10, 1)
    loader = DataLoader(TensorDataset(rows, rows), batch_size=2, shuffle=False)
    workload = from_parts("own", (nn.Linear(1, 1), loader, criterion))
    batches = [list(workload.batches(rank, 2, 0, 0)) for rank in range(2)]
    assert [len(b) for b in batches] == [2, 2]
    seen = torch.cat([x.flatten() for rank in batches for x, _ in rank])
    assert len(set(seen.tolist())) == 8
    assert workload.batch_size == 2


ROWS = TensorDataset(torch.zeros(8, 1), torch.zeros(8, 1))


class Stream(IterableDataset):
    """Says how long it is, but has no index."""

    def __len__(self):
        return 8

    def __iter__(self):
        return iter(ROWS)


@pytest.mark.parametrize(
    "sampler",
    [
        SequentialSampler(ROWS),
        RandomSampler(ROWS),
        DistributedSampler(ROWS, num_replicas=2, rank=0),
        type("Seedable", (RandomSampler,), {})(ROWS),
    ],
)
def test_a_sampler_that_only_orders_is_replaced(sampler):
    loader = DataLoader(ROWS, batch_size=2, sampler=sampler)
    workload = from_parts("own", (nn.Linear(1, 1), loader, criterion))
    assert workload.steps_of_epoch(2) == 2


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (
            DataLoader(ROWS, batch_size=2, sampler=SubsetRandomSampler([0, 1])),
            "SubsetRandomSampler.*use torch.utils.data.Subset, or a data function",
        ),
        (
            DataLoader(ROWS, batch_size=2, sampler=WeightedRandomSampler([1.0] * 8, 8)),
            "WeightedRandomSampler",
        ),
        (
            DataLoader(
                ROWS, batch_size=2, sampler=RandomSampler(ROWS, replacement=True)
            ),
            "RandomSampler that chooses samples",
        ),
        (
            DataLoader(ROWS, batch_sampler=BatchSampler([0, 1], 2, drop_last=True)),
            "a batch_size and no batch_sampler",
        ),
        (DataLoader(Stream(), batch_size=2), "Stream.*return a data function"),
    ],
    ids=["subset", "weights", "replacement", "batches", "stream"],
)
def test_a_dataloader_that_cannot_be_divided_is_refused(loader, message):
    with pytest.raises(WorkloadError, match=message):
        from_parts("own", (nn.Linear(1, 1), loader, criterion))


def test_a_list_of_batches_is_dealt_out_in_turn():
    batches = [(torch.full((1, 1), float(i)), torch.zeros(1, 1)) for i in range(5)]
    workload = from_parts("own", (nn.Linear(1, 1), batches, criterion))
    dealt = [[x.item() for x, _ in workload.batches(r, 2, 0, 0)] for r in range(2)]
    assert dealt == [[0, 2], [1, 3]]
    with pytest.raises(WorkloadError, match="5 batches for 6 ranks"):
        next(workload.batches(0, 6, 0, 0))


def test_a_function_of_batches_is_used_as_it_is():
    def data(rank, world_size, epoch, seed):
        yield torch.full((7, 1), float(rank)), torch.zeros(7, 1)

    workload = from_parts("own", (nn.Linear(1, 1), data, criterion))
    assert workload.batch_size == 7
    assert workload.batches is data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: iter(()), r"called with \(rank, world_size, epoch, seed\) and takes"),
        (lambda *of_epoch: iter(()), "yields no batch"),
        (lambda *of_epoch: None, "returned NoneType 'None': let it yield"),
    ],
    ids=["arguments", "empty", "none"],
)
def test_a_data_function_that_gives_no_epochs_is_refused(data, message):
    with pytest.raises(WorkloadError, match=message) as raised:
        from_parts("own", (nn.Linear(1, 1), data, criterion))
    assert "\n" not in str(raised.value)


def test_an_optimizer_may_be_made_or_made_later():
    model = nn.Linear(1, 1)
    batches = [(torch.zeros(1, 1), torch.zeros(1, 1))]
    built = torch.optim.Adam(model.parameters())
    given = from_parts("own", (model, batches, criterion, built))
    later = from_parts("own", (model, batches, criterion, torch.optim.Adagrad))
    left = from_parts("own", (model, batches, criterion))
    assert isinstance(given.optimizer(model.parameters()), torch.optim.Adam)
    assert isinstance(later.optimizer(model.parameters()), torch.optim.Adagrad)
    assert isinstance(left.optimizer(model.parameters()), torch.optim.SGD)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adafactor"])
def test_of_an_optimizer_new_ones_are_made_for_any_copy(kind):
    """As side by side, in trials and in a run that begins again."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    groups = [
        {"params": [model[1].bias, model[0].weight], "lr": 0.25},
        {"params": [model[1].weight], "weight_decay": 0.5},
    ]
    given = getattr(torch.optim, kind)(groups, lr=0.1)
    workload = from_parts("own", (model, [(torch.zeros(1, 2),) * 2], criterion, given))
    other = copy.deepcopy(model)
    made = workload.optimizer(other.parameters())
    assert type(made) is type(given)
    assert made is not given
    assert made.defaults == given.defaults
    first, second = made.param_groups
    assert first["params"][0] is other[1].bias
    assert first["params"][1] is other[0].weight
    assert second["params"][0] is other[1].weight
    for own, theirs in zip(made.param_groups, given.param_groups, strict=True):
        assert {**own, "params": 0} == {**theirs, "params": 0}


def test_an_optimizer_of_other_parameters_is_refused():
    model, other = nn.Linear(1, 1), nn.Linear(1, 1)
    parts = model, [torch.zeros(1)], criterion, torch.optim.SGD(other.parameters())
    with pytest.raises(WorkloadError, match="not its model's"):
        from_parts("own", parts)


def test_an_optimizer_that_cannot_be_made_again_says_so():
    class Own(torch.optim.SGD):
        def __init__(self, parameters, scale):
            super().__init__(parameters, lr=scale)

    model = nn.Linear(1, 1)
    parts = model, [torch.zeros(1)], criterion, Own(model.parameters(), 0.5)
    with pytest.raises(WorkloadError, match="another Own cannot be made"):
        from_parts("own", parts).optimizer(model.parameters())


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((nn.Linear(1, 1),), "returned a tuple of 1"),
        (("model", [1], criterion), "as its model"),
        ((nn.Linear(1, 1), 3, criterion), "as its data"),
        ((nn.Linear(1, 1), [torch.zeros(1)], "mse"), "as its loss"),
        ((nn.Linear(1, 1), [torch.zeros(1)], criterion, 0.1), "as its optimizer"),
    ],
)
def test_wrong_parts_are_named(parts, message):
    with pytest.raises(WorkloadError, match=message):
        from_parts("own", parts)


def test_a_batch_that_is_no_pair_is_refused():
    workload = from_parts("own", (nn.Linear(1, 1), [torch.zeros(3, 1)], criterion))
    with pytest.raises(WorkloadError, match="neither a pair of inputs and targets nor"):
        workload.loss(workload.model, next(workload.batches(0, 1, 0, 0)))


class Sum(nn.Module):
    """Takes two inputs; returns its loss as it is told to."""

    def __init__(self, wrap=None):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.wrap = wrap

    def forward(self, x, y):
        outputs = self.layer(x + y)
        return outputs if self.wrap is None else self.wrap(outputs.square().mean())


ONES = torch.ones(3, 1)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (((ONES, ONES), ONES), 3),
        (({"x": ONES, "y": ONES}, ONES), 3),
        ([[ONES, ONES], ONES], 3),
    ],
    ids=["tuple", "keywords", "list"],
)
def test_a_model_may_take_several_inputs(batch, samples):
    workload = from_parts("own", (Sum(), [batch], criterion))
    expected = criterion(workload.model(ONES, ONES), ONES)
    assert torch.equal(workload.loss(workload.model, batch), expected)
    assert workload.batch_size == samples


def test_a_dictionary_is_keywords_and_the_loss_sees_all_of_it():
    batch = {"x": ONES, "y": 2 * ONES}
    parts = (Sum(), [batch], lambda outputs, batch: criterion(outputs, batch["y"]))
    workload = from_parts("own", parts)
    expected = criterion(workload.model(ONES, 2 * ONES), 2 * ONES)
    assert torch.equal(workload.loss(workload.model, batch), expected)
    assert workload.batch_size == 3


def test_a_loss_with_class_weights_follows_the_model():
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]))
    batch = torch.ones(2, 4), torch.tensor([0, 1])
    model = nn.Linear(4, 2)
    workload = from_parts("own", (model, [batch], weighted))
    expected = weighted(model(batch[0]), batch[1])
    assert torch.equal(workload.loss(model, batch), expected)
    elsewhere = copy.deepcopy(model).to("meta")
    assert workload.loss(elsewhere, batch).device.type == "meta"
    assert torch.equal(workload.loss(model, batch), expected)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda loss: loss,
        lambda loss: (loss, "outputs"),
        lambda loss: {"loss": loss, "logits": None},
        lambda loss: SimpleNamespace(loss=loss),
    ],
    ids=["loss", "tuple", "dictionary", "attribute"],
)
@pytest.mark.parametrize("batch", [{"x": ONES, "y": ONES}, (ONES, ONES)])
def test_a_model_may_compute_its_loss(wrap, batch):
    model = Sum(wrap)
    for parts in ((model, [batch]), (model, [batch], None, torch.optim.Adam)):
        workload = from_parts("own", parts)
        expected = model.layer(ONES + ONES).square().mean()
        assert torch.equal(workload.loss(model, batch), expected)


@dataclass
class Batch:
    """A batch whose tensors have names."""

    x: torch.Tensor
    y: torch.Tensor


class SumOfBatch(Sum):
    """Takes the whole batch, and returns its loss."""

    def forward(self, batch):
        return super().forward(batch.x, batch.y).mean()


def test_a_dataclass_is_one_argument_whose_tensors_follow_the_model():
    batch = Batch(ONES, 2 * ONES)
    workload = from_parts("own", (SumOfBatch(), [batch]))
    expected = workload.model.layer(3 * ONES).mean()
    assert torch.equal(workload.loss(workload.model, batch), expected)
    assert workload.batch_size == 3
    assert workload.loss(workload.model.to("meta"), batch).device.type == "meta"


def test_a_model_without_any_loss_is_told_so():
    workload = from_parts("own", (Sum(), [(ONES, ONES)]))
    with pytest.raises(WorkloadError, match="returned no loss"):
        workload.loss(workload.model, (ONES, ONES))


def test_a_pair_without_a_loss_is_refused_with_the_remedy():
    parts = nn.Linear(1, 1), [(torch.zeros(1, 1), torch.zeros(1, 1))]
    workload = from_parts("own", parts)
    with pytest.raises(WorkloadError, match=r"does not take a batch of 2 .*loss\)"):
        workload.loss(workload.model, next(workload.batches(0, 1, 0, 0)))
