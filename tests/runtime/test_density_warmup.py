import pytest

from comm_plan.errors import InputError
from comm_plan.plans.compression import TopK
from comm_plan.runtime.density_warmup import GTOPK_WARMUP, density_in, parse
from comm_plan.tests.runtime.trainings import net, plan_for


@pytest.mark.parametrize(
    ("text", "means"),
    [("paper", GTOPK_WARMUP), ("3", 3), ("0.5,0.25", (0.5, 0.25)), ("1.0", (1.0,))],
)
def test_a_warmup_is_densities_or_a_number_of_epochs(text, means):
    assert parse(text) == means


@pytest.mark.parametrize("text", ["", "papers", "0.5,", "0.5,0", "1.5", "nan", "-1"])
def test_what_is_no_warmup_is_refused(text):
    with pytest.raises(InputError, match="--density-warmup"):
        parse(text)


def densities(warmup, plan, epochs=4):
    return [density_in(epoch, warmup, plan) for epoch in range(epochs)]


def test_given_densities_are_as_they_are():
    assert densities((0.5, 0.25), plan_for(net(), 1)) == [0.5, 0.25, 0, 0]


def test_a_warmup_of_so_many_epochs_falls_by_a_factor_to_the_lowest_density():
    plan = plan_for(net(), 1, TopK(density=(1.0, 0.001)), "allgather")
    assert densities(2, plan) == pytest.approx([0.1, 0.01, 0, 0])
    assert densities(2, plan_for(net(), 1)) == [1, 1, 0, 0]


def test_a_warmup_may_be_longer_than_any_run():
    plan = plan_for(net(), 1, TopK(density=0.001), "allgather")
    assert densities(10**12, plan) == pytest.approx([1, 1, 1, 1])
