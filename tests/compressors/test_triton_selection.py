"""The GPU selection: compiled where there is a GPU, else under Triton's interpreter."""

from itertools import product

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

ON_GPU = torch.cuda.is_available()
pytest.importorskip("triton", reason="triton is not installed")

from comm_plan.compressors import triton_selection  # noqa: E402
from comm_plan.compressors.triton_selection import (  # noqa: E402
    CANDIDATES_PER_K,
    NOTHING_EXCEEDS,
    SelectionState,
    accumulate_and_select,
)
from comm_plan.errors import InputError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
BLOCK = triton_selection.BLOCK if ON_GPU else 512


@pytest.fixture(autouse=True, scope="module")
def _small_blocks():
    """Give the interpreter several blocks of several rounds without many elements."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_selection, "BLOCK", BLOCK)
        patch.setattr(
            triton_selection, "LANES", min(triton_selection.LANES, BLOCK // 4)
        )
        patch.setattr(triton_selection, "PROGRAMS", 2)
        yield


def normal(numel, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(numel, generator=generator)).to(DEVICE)


def state_with_threshold(magnitude):
    state = SelectionState.fresh(DEVICE)
    state.threshold.copy_(torch.tensor([magnitude]).view(torch.int32))
    return state


def select_by_sorting(residual, gradient, k):
    """Return values, indices and new residual: magnitude first, then lowest index."""
    accumulated = residual + gradient.float()
    order = torch.sort(accumulated.abs(), descending=True, stable=True).indices
    indices = order[:k].sort().values
    values = accumulated[indices]
    return values, indices.int(), accumulated.index_fill(0, indices, 0.0)


def check_step(residual, gradient, k, state):
    expected = select_by_sorting(residual, gradient, k)
    values, indices = accumulate_and_select(residual, gradient, k, state)
    assert indices.dtype == torch.int32
    assert torch.equal(indices, expected[1])
    assert torch.equal(values, expected[0])
    assert torch.equal(residual, expected[2])


def few_candidates_sufficed(state, k):
    return k <= state.found.item() <= CANDIDATES_PER_K * k


N = 4 * BLOCK + 37
ADVERSARIAL = {
    "normal": normal(N),
    "zeros": torch.zeros(N),
    "one value everywhere": torch.full((N,), -0.5),
    "few distinct values": normal(N).round(),
    "ascending": torch.arange(N, dtype=torch.float32),
    "descending": -torch.arange(N, dtype=torch.float32).flip(0),
    "heavy tail": normal(N).pow(9),
    "neighbouring floats": torch.arange(N).add(0x3F800000).int().view(torch.float32),
    "subnormal": torch.arange(N, dtype=torch.int32).view(torch.float32),
    "one spike": torch.nn.functional.one_hot(torch.tensor(N - 1), N).float(),
    "largest last": torch.cat([torch.zeros(N - 50), torch.ones(50)]),
    "signed zeros": torch.zeros(N).copysign(normal(N).cpu()),
}


@pytest.mark.parametrize(
    ("name", "k"), [*product(ADVERSARIAL, (1, 40)), ("normal", N), ("zeros", N)]
)
def test_selection_is_exact_with_ties_to_the_lowest_index(name, k):
    state = SelectionState.fresh(DEVICE)
    residual = torch.zeros(N, device=DEVICE)
    for _ in range(2):
        check_step(residual, ADVERSARIAL[name].to(DEVICE), k, state)


@pytest.mark.parametrize("numel", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1])
def test_any_size_is_handled(numel):
    residual = normal(numel, seed=1)
    check_step(residual, normal(numel), max(1, numel // 100), None)


def test_values_are_those_of_torch_topk():
    residual = torch.zeros(N, device=DEVICE)
    gradient = normal(N)
    values, _ = accumulate_and_select(residual, gradient, 50, None)
    expected = gradient.abs().topk(50).values
    assert torch.equal(values.abs().sort(descending=True).values, expected)


@settings(max_examples=6)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 2**16),
            st.sampled_from([1e-30, 0.01, 1.0, 1e20]),
            st.integers(1, 2 * BLOCK + 100),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_result_does_not_depend_on_the_state(steps):
    numel = 2 * BLOCK + 100
    state = SelectionState.fresh(DEVICE)
    carried = torch.zeros(numel, device=DEVICE)
    forgetful = torch.zeros(numel, device=DEVICE)
    for seed, scale, k in steps:
        gradient = normal(numel, seed, scale)
        with_state = accumulate_and_select(carried, gradient, k, state)
        without = accumulate_and_select(forgetful, gradient, k, None)
        assert torch.equal(with_state[0], without[0])
        assert torch.equal(with_state[1], without[1])
        assert torch.equal(carried, forgetful)


def test_steady_gradients_are_selected_from_few_candidates():
    state = SelectionState.fresh(DEVICE)
    residual = torch.zeros(N, device=DEVICE)
    sufficed = []
    for step in range(12):
        check_step(residual, normal(N, seed=step), 100, state)
        sufficed.append(few_candidates_sufficed(state, 100))
    assert not sufficed[0]
    assert all(sufficed[-4:])


@pytest.mark.parametrize(
    ("magnitude", "found"), [(1e3, 0), (3.0, 0.0027 * N), (1.0, 0.317 * N), (1e-9, N)]
)
def test_a_wrong_threshold_costs_no_exactness(magnitude, found):
    state = state_with_threshold(magnitude)
    check_step(torch.zeros(N, device=DEVICE), normal(N), 100, state)
    assert not few_candidates_sufficed(state, 100)
    assert state.found.item() == pytest.approx(found, rel=0.1, abs=8)


@pytest.mark.parametrize("candidates", [100, 101, 399, 400, 401, 99])
def test_both_ends_of_the_candidate_range_are_exact(candidates):
    gradient = normal(N)[torch.randperm(N, generator=torch.Generator().manual_seed(1))]
    magnitude = gradient.abs().sort(descending=True).values[candidates - 1].item()
    state = state_with_threshold(magnitude)
    check_step(torch.zeros(N, device=DEVICE), gradient, 100, state)
    assert state.found.item() == candidates


def test_ties_among_candidates_go_to_the_lowest_index():
    gradient = torch.zeros(N, device=DEVICE)
    gradient[:: N // 200] = 1.0
    gradient[7 :: N // 10] = -2.0
    state = state_with_threshold(0.5)
    check_step(torch.zeros(N, device=DEVICE), gradient, 100, state)
    assert few_candidates_sufficed(state, 100)


def test_density_may_change_between_steps():
    state = SelectionState.fresh(DEVICE)
    residual = torch.zeros(N, device=DEVICE)
    for step, k in enumerate([N // 4, 600, 100, 30, N // 3]):
        check_step(residual, normal(N, seed=step), k, state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gradients_are_added_in_float32(dtype):
    check_step(normal(N, seed=3), normal(N).to(dtype), 50, None)


def test_threshold_follows_the_data_down():
    state = SelectionState.fresh(DEVICE)
    assert state.threshold.item() == NOTHING_EXCEEDS
    for scale in (1.0, 1e-6):
        residual = torch.zeros(N, device=DEVICE)
        accumulate_and_select(residual, normal(N, scale=scale), 100, state)
    assert 0 < state.threshold.view(torch.float32).item() < 1e-4


@pytest.mark.parametrize(
    ("residual", "gradient", "k", "message"),
    [
        (torch.zeros(4), torch.zeros(4), 5, "k is 5 for 4 elements"),
        (torch.zeros(4), torch.zeros(4), 0, "choose k from 1 to 4"),
        (torch.zeros(4), torch.zeros(3), 1, "gradient has 3 elements, residual 4"),
        (torch.zeros(4).half(), torch.zeros(4), 1, "keep it in torch.float32"),
        (torch.zeros(8)[::2], torch.zeros(4), 1, "not contiguous"),
    ],
)
def test_unusable_input_is_refused(residual, gradient, k, message):
    with pytest.raises(InputError, match=message):
        accumulate_and_select(residual, gradient, k)


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_waits_for_the_device():
    state = SelectionState.fresh(DEVICE)
    residual, gradient = torch.zeros(N, device=DEVICE), normal(N)
    accumulate_and_select(residual, gradient, 50, state)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        accumulate_and_select(residual, gradient, 50, state)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_a_captured_graph_selects_the_same():
    state = SelectionState.fresh(DEVICE)
    residual, gradient = torch.zeros(N, device=DEVICE), normal(N)
    accumulate_and_select(residual, gradient, 50, SelectionState.fresh(DEVICE))
    residual.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values, indices = accumulate_and_select(residual, gradient, 50, state)
    expected = torch.zeros(N, device=DEVICE)
    for step in range(5):
        gradient.copy_(normal(N, seed=step))
        want = select_by_sorting(expected, gradient, 50)
        expected = want[2]
        graph.replay()
        assert torch.equal(values, want[0])
        assert torch.equal(indices, want[1])
        assert torch.equal(residual, expected)
