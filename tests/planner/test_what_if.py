"""Claims about other numbers of ranks."""

from io import StringIO

import pytest
from rich.console import Console

from comm_plan.errors import InputError
from comm_plan.planner import Settings, make_problem, solve, summarise
from comm_plan.planner.what_if import what_if
from comm_plan.plans.compression import METHODS
from comm_plan.report.solvers import speedup_table, what_if_table

SIZES = (2, 8, 64)


@pytest.fixture
def profile(build):
    return build.profile([1e-3] * 6, [10_000] * 6, forward_s=4e-3, update_s=1e-3)


@pytest.fixture
def network(build):
    return build.network(8, point_to_point=build.fit((0, 1e-4, 1e-9)),
                         allreduce=build.fit((0, 1e-4, 1e-9)))  # fmt: skip


def printed(table, width=120):
    out = StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue()


@pytest.mark.parametrize("method", METHODS)
def test_any_compressor_can_be_forced_on_any_profile(profile, network, method):
    settings = Settings(compressor=method)
    found = what_if(profile, network, SIZES, ["optimal", "single"], settings)
    assert [summary.world_size for summary in found.summaries] == list(SIZES)
    assert all(len(summary.rows) == 2 for summary in found.summaries)
    free = any("only its messages count" in remark for remark in found.remarks)
    assert free


def test_costs_in_the_profile_count(build, network):
    costs = build.compression(topk=(1.0, 0.0))
    slow = build.profile([1e-3] * 2, [10_000] * 2, compression=costs)
    settings = Settings(compressor="topk", options={"density": 0.01})
    found = what_if(slow, network, [8], ["single"], settings)
    assert found.remarks == ()
    assert found.summaries[0].rows[0].iteration_s > 1


def test_what_is_left_out_is_said_once(profile, network):
    found = what_if(profile, network, SIZES, ["lags", "wfbp"], Settings())
    assert [remark.split(":")[0] for remark in found.remarks] == ["lags is left out"]


def test_a_solver_that_chooses_takes_no_forced_compressor(profile, network):
    with pytest.raises(InputError, match="chooses the compressor itself"):
        what_if(profile, network, SIZES, ["auto"], Settings(compressor="topk"))


def test_one_rank_alone_is_its_computation(profile, network):
    (summary,) = what_if(profile, network, [1], ["wfbp"], Settings()).summaries
    assert summary.alone_s == pytest.approx(summary.rows[0].iteration_s)


def test_the_speed_up_is_n_over_1_plus_r(profile, network):
    (summary,) = what_if(profile, network, [8], ["single"], Settings()).summaries
    r = summary.rows[0].iteration_s / summary.alone_s - 1
    assert f"{8 / (1 + r):.2f} ({r:.2f})" in printed(
        speedup_table([summary], ["single"])
    )


def test_no_figure_is_cut_where_the_terminal_is_narrow(profile, network):
    solvers = ["wfbp", "single", "threshold", "mg-wfbp", "optimal"]
    summaries = what_if(profile, network, SIZES, solvers, Settings()).summaries
    for table in (
        speedup_table(summaries, solvers),
        what_if_table(summaries, solvers, measured=8),
    ):
        assert "…" not in printed(table, width=50)


def test_layers_hold_all_elements_and_are_ready_as_their_last_tensor(build):
    tensors = [
        build.tensor("b.weight", (3,), 1.0),
        build.tensor("b.bias", (2,), 2.0),
        build.tensor("a.weight", (4,), 3.0),
    ]
    layers = build.profile_of(tensors).by_layer().tensors
    assert [(t.layer, t.numel, t.ready_s) for t in layers] == [
        ("b", 5, 2.0),
        ("a", 4, 3.0),
    ]


@pytest.mark.parametrize(
    ("shapes", "merged"),
    [
        ([(64, 3, 7, 7), (64,)], (64, 148)),
        ([(10,), (10, 20)], (10, 21)),
        ([(2, 3), (8, 4), (4,)], (1, 42)),  # 42 elements fill no rows of 8
        ([(6,), ()], (7,)),
        ([(64, 3, 7, 7)], (64, 3, 7, 7)),
    ],
)
def test_a_layer_has_the_rows_of_its_largest_matrix(build, shapes, merged):
    tensors = [
        build.tensor(f"a.{number}", shape) for number, shape in enumerate(shapes)
    ]
    (layer,) = build.profile_of(tensors).by_layer().tensors
    assert layer.shape == merged


def test_a_sparse_gradient_is_no_part_of_its_layer(build):
    table = build.tensor("a.table", (100, 8)).model_copy(update={"rows": 5})
    tensors = [build.tensor("a.bias", (8,)), table, build.tensor("a.scale", (8,))]
    layers = build.profile_of(tensors).by_layer().tensors
    assert [layer.name for layer in layers] == ["a.bias", "a.table", "a.scale"]
    assert layers[1] == table
    assert layers[1].rows_nbytes == 5 * (8 + 4 * 8)


def test_layers_are_compressed_as_their_weights_are(build, network):
    tensors = [build.tensor("a.weight", (64, 300)), build.tensor("a.bias", (64,))]
    costs = build.compression(topk=(0.0, 0.0), powersgd=(0.0, 0.0))
    profile = build.profile_of(tensors, compression=costs).by_layer()

    def forced(method, **options):
        settings = Settings(compressor=method, options=options)
        summary = summarise(make_problem(profile, network, settings), ["single"])
        return summary.row("single").solution.options[0]

    assert forced("topk", density=0.01).compressor.densities(1) == (0.01,)
    assert forced("powersgd", rank=1).legs[-1].nbytes[-1] == 4 * (64 + 301) / 2


def test_waiting_is_no_computation_of_one_rank(profile, network):
    waiting = profile.model_copy(update={"waiting_s": 2e-3})

    def alone_s(of, ranks):
        (summary,) = what_if(of, network, [ranks], ["wfbp"], Settings()).summaries
        return summary.alone_s

    assert alone_s(waiting, 8) == pytest.approx(alone_s(profile, 8))
    assert alone_s(waiting, 1) == pytest.approx(alone_s(profile, 1))


@pytest.mark.parametrize(("ranks", "waits"), [(1, 0.0), (2, 1.0), (8, 1.0)])
def test_one_rank_waits_for_nobody(profile, network, ranks, waits):
    waiting = profile.model_copy(update={"waiting_s": 2e-3})
    settings = Settings(world_size=ranks)

    def solved(of):
        return solve(make_problem(of, network, settings), "single").predicted

    longer_s = solved(waiting).iteration_s - solved(profile).iteration_s
    assert longer_s == pytest.approx(waits * 2e-3)
    begins_s = solved(waiting).timing.backward_start_s
    assert begins_s == pytest.approx(profile.forward_s + waits * 2e-3)


def test_a_profile_lasts_as_long_as_is_asked(profile):
    longer = profile.lasting(3.0)
    parts = longer.forward_s, longer.backward_s, longer.update_s
    assert sum(parts) == pytest.approx(3.0)
    assert longer.tensors[-1].ready_s == pytest.approx(longer.backward_s)
