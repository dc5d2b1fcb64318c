"""The greedy baseline takes the decisions of the paper's Algorithm 1."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from comm_plan.planner import Settings, make_problem, mg_wfbp
from comm_plan.planner.mg_wfbp import merge
from comm_plan.tests.support import documents


def _algorithm_1(forward, backward, sizes, a, b):
    """The paper's Algorithm 1 line by line; layers 1..L, arrays padded at 0."""
    layers = len(sizes)
    p = [0.0, *sizes]
    tb = [0.0, *backward]
    tc = [0.0] + [a + b * n for n in sizes]
    tau_b = [0.0] * (layers + 2)
    tau_b[layers] = forward
    for l in range(layers - 1, -1, -1):  # noqa: E741
        tau_b[l] = tau_b[l + 1] + tb[l + 1]

    def calculate_comm_start():
        tau_c = [0.0] * (layers + 1)
        tau_c[layers] = tau_b[layers] + tb[layers]
        for l in range(layers - 1, 0, -1):  # noqa: E741
            tau_c[l] = max(tau_c[l + 1] + tc[l + 1], tau_b[l] + tb[l])
        return tau_c

    tau_c = calculate_comm_start()
    merged = []
    for l in range(layers, 1, -1):  # noqa: E741
        if tau_b[l - 2] - tau_c[l] < a:
            tc[l] = 0.0
            p[l - 1] += p[l]
            tc[l - 1] = a + b * p[l - 1]
            tau_c = calculate_comm_start()
            merged.append(l)
    return merged


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_one_pass_takes_the_decisions_of_algorithm_1(seed, layers):
    rng = np.random.default_rng(seed)
    backward = rng.integers(0, 8, layers).astype(float)  # integers: sums are exact
    sizes = rng.integers(1, 20, layers).astype(float)
    forward, a, b = float(rng.integers(5)), float(rng.integers(10)), 0.25
    merged = _algorithm_1(forward, backward, sizes, a, b)

    ready = forward + np.cumsum(backward[::-1])
    stops, _ = merge(ready.tolist(), (b * sizes[::-1]).tolist(), a)
    layer_of_stop = [layers + 1 - stop for stop in stops]
    assert layer_of_stop == sorted(
        set(range(1, layers + 1)) - set(merged), reverse=True
    )


def test_lengths_that_go_before_a_message_are_one_more_startup():
    """They are as long whatever travels: no line goes through them."""
    points = [(4, 1e-3), (1024, 1.1e-3), (2**20, 5e-3)]
    network = documents.network(4, allgather=documents.samples(*points))
    profile = documents.profile(
        [1e-3] * 4,
        [50_000] * 4,
        compression=documents.compression(strom=(0.0, 1e-10)),
    )
    problem = make_problem(profile, network, Settings(compressor="strom"))
    alpha_s, _ = mg_wfbp._line(problem.runs[0])
    assert 1.5e-3 < alpha_s < 3e-3
