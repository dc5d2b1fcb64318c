"""Claims about the selection of the k largest magnitudes."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from comm_plan.compressors import selection
from comm_plan.compressors.selection import (
    LastSelection,
    Stretches,
    accumulate_and_select,
)

pytestmark = pytest.mark.usefixtures("with_and_without_loops")

NUMEL = 3 * selection.CHUNK_NUMEL + 123


def normal(rng):
    return rng.standard_normal(NUMEL)


ADVERSARIES = {
    "all equal": lambda rng: np.full(NUMEL, -3.0),
    "all zero": lambda rng: np.zeros(NUMEL),
    "negative zero": lambda rng: np.full(NUMEL, -0.0),
    "denormal": lambda rng: rng.integers(-99, 99, NUMEL) * 1e-44,
    "few distinct": lambda rng: rng.integers(-2, 3, NUMEL),
    "two levels": lambda rng: np.where(rng.random(NUMEL) < 1e-3, 2.0, 1.0),
    "ascending": lambda rng: np.sort(normal(rng)),
    "ascending magnitudes": lambda rng: np.arange(NUMEL) * -1.0,
    "descending magnitudes": lambda rng: np.arange(NUMEL)[::-1] * 1.0,
    "heavy tails": lambda rng: rng.standard_cauchy(NUMEL),
    "huge": lambda rng: normal(rng) * 1e37,
    "mostly zero": lambda rng: normal(rng) * (rng.random(NUMEL) < 1e-3),
    "all in the last chunk": lambda rng: normal(rng) * (np.arange(NUMEL) > NUMEL - 500),
    "seen by the sample": lambda rng: normal(rng) * (np.arange(NUMEL) % 1573 < 16),
    "unseen by the sample": lambda rng: normal(rng) * (np.arange(NUMEL) % 1573 > 99),
    "normal": normal,
}


def oracle(values: np.ndarray, k: int) -> np.ndarray:
    """The indices of the k largest magnitudes, lowest indices first among equals."""
    return np.sort(np.argsort(-np.abs(values), kind="stable")[:k])


def check(
    residual: torch.Tensor,
    gradient: torch.Tensor,
    k: int,
    state: LastSelection | None = None,
) -> None:
    total = (residual + gradient).numpy()
    values, indices = accumulate_and_select(residual, gradient, k, state)
    expected = oracle(total, k)
    np.testing.assert_array_equal(indices.numpy(), expected)
    np.testing.assert_array_equal(values.numpy(), total[expected])
    total[expected] = 0
    np.testing.assert_array_equal(residual.numpy(), total)
    assert (values.dtype, indices.dtype) == (torch.float32, torch.int32)


@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.parametrize("k", [1, 20, 200, 2000, NUMEL // 20, NUMEL // 3, NUMEL])
def test_selects_the_largest_of_adversarial_data(name, k):
    rng = np.random.default_rng(k)
    total = torch.from_numpy(ADVERSARIES[name](rng).astype(np.float32))
    residual = torch.zeros(NUMEL) if k % 2 else total.clone()
    gradient = total if k % 2 else torch.zeros(NUMEL)
    check(residual, gradient, k)


@pytest.mark.parametrize("k", [1, 200, 2000, 50_000])
def test_agrees_with_torch_topk(k):
    data = torch.randn(NUMEL, generator=torch.Generator().manual_seed(k))
    values, _ = accumulate_and_select(torch.zeros(NUMEL), data, k)
    torch.testing.assert_close(
        values.abs().sort(descending=True).values,
        data.abs().topk(k).values,
        rtol=0,
        atol=0,
    )


@given(st.data())
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_selects_the_largest_of_small_tensors(data):
    floats = st.floats(-4, 4, width=16)
    numel = data.draw(st.integers(1, 40))
    tensors = st.lists(floats, min_size=numel, max_size=numel)
    residual = torch.tensor(data.draw(tensors))
    gradient = torch.tensor(data.draw(tensors))
    check(residual, gradient, data.draw(st.integers(1, numel)))


@pytest.mark.parametrize("guess", [-1.0, 0.0, 1.0, 3.29, 100.0])
@pytest.mark.parametrize("data", ["normal", "few distinct", "ascending magnitudes"])
def test_the_sampled_threshold_does_not_change_the_result(monkeypatch, guess, data):
    monkeypatch.setattr(selection, "_sampled_threshold", lambda *_: guess)
    total = ADVERSARIES[data](np.random.default_rng(5)).astype(np.float32)
    check(torch.zeros(NUMEL), torch.from_numpy(total), 200)


@pytest.mark.parametrize("begin", [None, 0.0, 1.0, 3.29, 100.0, np.inf])
@pytest.mark.parametrize("data", ["normal", "few distinct", "all zero", "huge"])
def test_what_the_last_one_leaves_does_not_change_the_result(begin, data):
    total = ADVERSARIES[data](np.random.default_rng(6)).astype(np.float32)
    residual, state = torch.zeros(NUMEL), LastSelection(begin)
    for k in (200, 2000, 20):
        check(residual, torch.from_numpy(total), k, state)
        assert 0 <= state.threshold <= abs(total).max() * 4


@pytest.mark.parametrize("count", [20, 21, 40, 80, 10**6])
@pytest.mark.parametrize("begin", [-1.0, 0.0, 1e-3, 0.9, 1.0])
@pytest.mark.parametrize("per_k", [0.5, 1.0, 2.0, 8.0])
def test_the_next_threshold_is_a_magnitude_on_the_right_side(begin, count, per_k):
    threshold = selection._next_threshold(begin, count, 1.0, 20, per_k)
    assert (0 if per_k > 1 else 1) <= threshold <= (2 if per_k < 1 else 1)


@pytest.mark.parametrize("found", [0, 1, 20, 30, 10**6])
def test_more_are_asked_for_the_fewer_were_found(found):
    wanted = selection._next_per_k(1.5, found, 20)
    assert 0.5 <= wanted <= 8
    assert (wanted > 1.5) == (found < 30)
    assert (wanted < 1.5) == (found > 30)


@pytest.mark.parametrize("k", [20, 200, 2000])
def test_the_next_selection_begins_where_enough_are_found(monkeypatch, k):
    generator = torch.Generator().manual_seed(k)
    residual, state = torch.zeros(NUMEL), LastSelection()
    for step in range(10):
        gradient = torch.randn(NUMEL, generator=generator)
        if step == 4:  # from then on no sample is needed
            monkeypatch.setattr(selection, "_sampled_threshold", None)
        if step >= 4:
            found = int(((residual + gradient).abs() > state.threshold).sum())
            assert k <= found <= 16 * k
        check(residual, gradient, k, state)


@pytest.mark.parametrize("k", [200, 2000])
@pytest.mark.parametrize("pace", [0.97, 1.0, 1.05])
def test_the_threshold_follows_magnitudes_that_grow_or_fall(monkeypatch, k, pace):
    generator = torch.Generator().manual_seed(k)
    residual, state, many = torch.zeros(NUMEL), LastSelection(), []
    for step in range(40):
        gradient = torch.randn(NUMEL, generator=generator) * pace**step
        if step == 20:  # from then on no sample is needed
            monkeypatch.setattr(selection, "_sampled_threshold", None)
        if step >= 20:
            found = int(((residual + gradient).abs() > state.threshold).sum())
            many.append(found / k)
        check(residual, gradient, k, state)
    assert min(many) >= 1
    assert 1.3 <= np.median(many) <= 1.7


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gradients_are_accumulated_in_float32(dtype):
    residual = torch.full((NUMEL,), 1e-5)
    gradient = torch.randn(NUMEL, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = residual + gradient.float()
    _, indices = accumulate_and_select(residual, gradient, 200)
    expected[indices] = 0
    assert torch.equal(residual, expected)


def test_plain_torch_operations_select_the_same():
    generator = torch.Generator().manual_seed(3)
    residual = torch.randn(NUMEL, generator=generator)
    gradient = torch.randn(NUMEL, generator=generator)
    other = residual.clone()
    values, indices = accumulate_and_select(residual, gradient, 200)
    by_torch = selection._with_torch(other, gradient, 200)
    assert torch.equal(by_torch[0], values)
    assert torch.equal(by_torch[1], indices)
    assert torch.equal(other, residual)


@pytest.mark.parametrize("numel", [1, 64, selection.SMALL_NUMEL - 1])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.sampled_from(["normal", "few"]), share=st.floats(0, 1))
def test_plain_torch_operations_take_the_first_of_equals_of_small_tensors(
    numel, values, share
):
    generator = torch.Generator().manual_seed(numel)
    gradient = torch.randn(numel, generator=generator)
    if values == "few":
        gradient = gradient.round()
    k = max(1, int(share * numel))
    residual, other = torch.zeros(numel), torch.zeros(numel)
    expected = accumulate_and_select(residual, gradient, k)
    by_torch = selection._with_torch(other, gradient, k)
    assert all(map(torch.equal, by_torch, expected))
    assert torch.equal(other, residual)


@given(st.data(), st.integers(0, 10**6))
def test_selecting_from_many_at_once_is_selecting_from_each(data, seed):
    numels = data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=6))
    ks = [data.draw(st.integers(1, numel)) for numel in numels]
    rng = np.random.default_rng(seed)
    drawn = data.draw(st.sampled_from(["normal", "few distinct", "mostly zero"]))
    values = ADVERSARIES[drawn](rng)[: sum(numels)].astype(np.float32)
    residual = torch.from_numpy(values * np.float32(rng.choice([1e-42, 1, 1e37])))
    expected = [
        (*accumulate_and_select(part, torch.zeros_like(part), k), part)
        for part, k in zip(residual.clone().split(numels), ks, strict=True)
    ]
    stretches = Stretches(numels, ks, residual.device)
    taken, chosen = stretches.take(residual)
    within = stretches.within(chosen)
    assert torch.equal(stretches.across(within), chosen)
    for got, wanted in zip(
        (taken, within, residual), zip(*expected, strict=True), strict=True
    ):
        assert torch.equal(got, torch.cat(wanted))


def test_the_gradient_is_only_read():
    gradient = torch.randn(NUMEL)
    before = gradient.clone()
    accumulate_and_select(torch.zeros(NUMEL), gradient, 200)
    assert torch.equal(gradient, before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("data", "copies"),
    [("normal", 1), ("few distinct", selection.SMALL_ON_GPU // NUMEL + 1)],
)
def test_gpu_selects_the_same_as_cpu(data, copies):
    """Of few elements PyTorch selects, and takes equal ones as it likes."""
    total = ADVERSARIES[data](np.random.default_rng(9)).astype(np.float32)
    gradient = torch.from_numpy(total).repeat(copies)
    residual, on_gpu = torch.zeros_like(gradient), torch.zeros_like(gradient).cuda()
    state = selection.fresh_state(on_gpu.device)
    for _ in range(3):
        expected = accumulate_and_select(residual, gradient, 200)
        got = accumulate_and_select(on_gpu, gradient.cuda(), 200, state)
        assert torch.equal(got[0].cpu(), expected[0])
        assert torch.equal(got[1].cpu(), expected[1])
        assert torch.equal(on_gpu.cpu(), residual)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_selects_the_same_again_where_magnitudes_are_equal():
    data = ADVERSARIES["few distinct"](np.random.default_rng(9)).astype(np.float32)
    gradient = torch.from_numpy(data).cuda()
    once, again = (
        accumulate_and_select(torch.zeros_like(gradient), gradient, 200)
        for _ in range(2)
    )
    assert all(map(torch.equal, once, again))
