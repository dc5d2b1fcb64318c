"""What low ranks leave out, against singular values by definition."""

from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn

from comm_plan.plans.compression.powersgd import RANKS
from comm_plan.profiler import low_rank as module
from comm_plan.profiler import measure
from comm_plan.profiler.low_rank import squared_errors, with_low_rank
from comm_plan.tests.profiler.test_measure import Toy
from comm_plan.tests.support import documents
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport
from comm_plan.workloads.base import endless


class Noise(Toy):
    """Other batches on every rank."""

    def batches(self, rank, world_size, epoch, seed):
        random = torch.Generator().manual_seed(rank)
        for _ in range(3):
            yield torch.randn(8, 64, generator=random)


def by_definition(matrix):
    energy = torch.linalg.svdvals(matrix).double().square()
    return [float(energy[rank:].sum()) for rank in RANKS]


@pytest.mark.parametrize("shape", [(64, 48), (48, 4, 4, 4), (40, 2000)])
def test_errors_are_those_of_the_singular_values(shape):
    torch.manual_seed(0)
    decay = torch.arange(1, shape[0] + 1).float().reciprocal()
    gradient = decay.view(-1, *[1] * (len(shape) - 1)) * torch.randn(shape)
    expected = by_definition(gradient.flatten(1))
    assert squared_errors(gradient).tolist() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("shape", [(1, 9), (5, 3)])
def test_no_rank_is_above_that_of_the_matrix(shape):
    gradient = torch.randn(shape)
    errors = squared_errors(gradient)
    assert errors[-1] == pytest.approx(0.0, abs=1e-4)


def test_what_is_no_matrix_or_has_no_gradient_has_no_errors():
    model = nn.Sequential(nn.Linear(64, 64))
    model.spare = nn.Parameter(torch.ones(64, 64))
    profile = measure(Noise(model), kinds=["powersgd"], iterations=20)
    found = {tensor.name: tensor.low_rank for tensor in profile.tensors}
    assert [each.rank for each in found["0.weight"]] == list(RANKS)
    assert found["0.bias"] is found["spare"] is None


def test_without_powersgd_nothing_is_measured():
    profile = measure(Noise(nn.Linear(64, 64)), kinds=["topk"], iterations=20)
    assert all(tensor.low_rank is None for tensor in profile.tensors)


def test_gradients_that_are_not_finite_have_no_errors():
    class Broken(Noise):
        def loss(self, model, batch):
            return model(batch).sum() * float("inf")

    workload = Broken(nn.Linear(64, 64))
    profile = measure(workload, iterations=20)
    found = with_low_rank(workload, profile, LocalTransport())
    assert all(tensor.low_rank is None for tensor in found.tensors)


def test_errors_are_means_over_gradients_of_several_batches_of_every_rank():
    class Bent(Noise):
        """Gradients are of full rank."""

        def loss(self, model, batch):
            return model(batch).square().sum()

    torch.manual_seed(0)
    start = torch.randn(64, 64)

    def workload():
        model = nn.Linear(64, 64, bias=False)
        model.weight.data.copy_(start)
        return Bent(model)

    def body(ranks):
        profile = documents.profile_of([documents.tensor("weight", (64, 64))])
        return with_low_rank(workload(), profile, ranks).tensors[0].low_rank

    def gradients(rank):
        drawn = endless(workload().batches, rank, 2)
        for _ in range(module.GRADIENTS):
            batches = list(islice(drawn, module.BATCHES))
            yield sum(2 * start @ batch.T @ batch for batch in batches) / len(batches)

    first, second = run_ranks(2, body)
    assert first == second
    errors = [by_definition(each) for rank in range(2) for each in gradients(rank)]
    expected = np.mean(errors, axis=0)
    assert [each.squared_error for each in first] == pytest.approx(expected, rel=0.02)
