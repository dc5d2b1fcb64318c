"""Every solver on every kind of problem."""

import itertools

import numpy as np
import pytest

from comm_plan.errors import InputError
from comm_plan.planner import BASELINES, SOLVERS, Settings
from comm_plan.planner.order import sending_order
from comm_plan.plans import Plan
from comm_plan.plans.compression import KINDS, METHODS
from comm_plan.tests.support.planning import planned

MEASURED = {k: (3e-5, 1e-9) for k, spec in KINDS.items() if not spec.lossless}


def _profile(build, backward_s, numels, **more):
    costs = build.compression(**MEASURED)
    return build.profile(backward_s, numels, compression=costs, **more)


def _one_tensor(build):
    return _profile(build, [1e-3], [1000])


def _all_ready_at_once(build):
    return _profile(build, [0.0] * 6, [5000] * 6)


def _alternating_dtypes(build):
    dtypes = ["float32", "bfloat16", "float32", "float32", "float64", "float64"]
    return _profile(build, [1e-3] * 6, [10**5] * 6, dtypes=dtypes)


def _many_layers(build):
    rng = np.random.default_rng(7)
    return _profile(
        build,
        rng.exponential(1e-3, 40).tolist(),
        np.exp(rng.uniform(0, 14, 40)).astype(int).tolist(),
        forward_s=0.02,
        update_s=0.003,
        layers=[f"block{i // 2}" for i in range(40)],
    )


def _line(build):
    link = build.fit((0, 1e-4, 1e-8))
    return build.network(8, allgather=build.fit((0, 1e-3, 1e-8)), point_to_point=link)


def _curve(build):
    curve = build.samples((4, 5e-4), (256, 5e-3), (2**18, 6e-3), (2**24, 0.2))
    return build.network(4, allreduce=curve, allgather=curve, gtopk=curve)


def _free(build):
    free = build.fit((0, 0.0, 0.0))
    return build.network(4, allreduce=free, allgather=free)


PROFILES = [_one_tensor, _all_ready_at_once, _alternating_dtypes, _many_layers]
NETWORKS = [_line, _curve, _free]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("world_size", [None, 1, 32])
def test_every_solver_sends_every_tensor_once_in_order(
    build, solver, profile, network, world_size
):
    given = profile(build)
    plan = planned(given, network(build), solver, world_size=world_size)
    sent = [name for bucket in plan.buckets for name in bucket.tensors]
    assert sent == [tensor.name for tensor in sending_order(given.tensors)]
    dtype = {tensor.name: tensor.dtype for tensor in given.tensors}
    for bucket in plan.buckets:
        dtypes = {dtype[name] for name in bucket.tensors}
        assert len(dtypes) == 1
        assert dtypes <= set(bucket.compressor.dtypes)
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.solver == solver
    assert set(plan.predicted.baselines) == set(BASELINES) - {solver}
    alone = given.forward_s + given.backward_s + given.update_s
    assert plan.predicted.iteration_s >= alone
    assert plan.predicted.exposed_s <= plan.predicted.iteration_s


@pytest.mark.parametrize("solver", SOLVERS)
def test_free_communication_exposes_nothing(build, solver):
    plan = planned(_many_layers(build), _free(build), solver)
    assert plan.predicted.exposed_s == 0


@pytest.mark.parametrize("compressor", METHODS)
@pytest.mark.parametrize(
    "solver", [name for name, s in SOLVERS.items() if not s.chooses_compression]
)
def test_every_compressor_can_be_asked_of_every_merging_solver(
    build, solver, compressor
):
    given = _many_layers(build)
    plan = planned(given, _line(build), solver, compressor=compressor)
    spec, collective = METHODS[compressor]
    kept = given.tensors[0].layer if spec.keeps_last_layer else None
    layer = {tensor.name: tensor.layer for tensor in given.tensors}
    for bucket in plan.buckets:
        layers = {layer[name] for name in bucket.tensors}
        if layers == {kept}:
            assert bucket.compressor.kind == "dense"
        else:
            assert (bucket.compressor.kind, bucket.collective) == (
                spec.kind,
                collective,
            )


def test_the_same_inputs_give_the_same_plan(build):
    for solver in SOLVERS:
        plans = {
            planned(_many_layers(build), _curve(build), solver).sha256 for _ in range(2)
        }
        assert len(plans) == 1


def test_a_plan_names_what_it_was_computed_from(build):
    profile, network = _many_layers(build), _line(build)
    plan = planned(profile, network)
    assert plan.inputs.profile_sha256 == profile.sha256
    assert plan.inputs.network_sha256 == network.sha256
    assert plan.model.fingerprint == profile.model.fingerprint


def test_layers_asked_to_stay_dense_stay_dense(build):
    given = _many_layers(build)
    patterns = ["block12", "block0.1"]
    for solver, compressor in [("optimal", "topk"), ("lags", None), ("auto", None)]:
        network = build.network(8, allgather=build.fit((0, 1e-3, 1e-6)))
        network = network.model_copy(
            update={
                "collectives": {
                    "allreduce": build.fit((0, 1e-3, 1e-6)),
                    "allgather": build.fit((0, 1e-3, 1e-6)),
                }
            }
        )
        plan = planned(
            given, network, solver, compressor=compressor, dense_layers=patterns
        )
        kinds = {n: b.compressor.kind for b in plan.buckets for n in b.tensors}
        assert kinds["block0.1"] == "dense"
        assert kinds["block0.0"] != "dense"
        assert all(
            kinds[t.name] == "dense" for t in given.tensors if t.layer == "block12"
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"solver": "best"}, "solver 'best' is unknown: use one of optimal, mg-wfbp"),
        ({"solver": "lags", "compressor": "topk"}, "chooses the compressor itself"),
        ({"compressor": "zip"}, "compressor 'zip' is unknown: use one of dense"),
        ({"world_size": 0}, "world size 0 is not from 1"),
        (
            {"options": {"density": 0.1}},
            "options density are given without a compressor",
        ),
        (
            {"compressor": "topk", "options": {"density": 2.0}},
            "density = 2.0: must be at most 1",
        ),
        (
            {"compressor": "topk", "options": {"density": 0.0}},
            "density = 0.0: must be at least 1e-12",
        ),
        (
            {"compressor": "fp16", "options": {"density": 0.1}},
            "compressor fp16: density",
        ),
        ({"link_bytes_per_s": 0.0}, "link speed 0.0 is not above 0"),
        ({"dense_layers": ["fc*"]}, "'fc\\*' matches no layer and no tensor"),
        ({"compressor": "terngrad-allreduce", "world_size": 128}, "at most 127 ranks"),
    ],
)
def test_what_cannot_be_planned_says_what_to_do(build, arguments, message):
    with pytest.raises(InputError, match=message):
        planned(_many_layers(build), _line(build), **arguments)


def test_parameters_of_the_model_itself_are_examples_of_names_too(build):
    profile = _many_layers(build)
    tensors = tuple(t.model_copy(update={"layer": ""}) for t in profile.tensors)
    own = profile.model_copy(update={"tensors": tensors})
    with pytest.raises(InputError, match=f"such as {tensors[0].name!r}"):
        planned(own, _line(build), dense_layers=["fc*"])


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"max_ratio": 0.5}, "0.5 is not from 1"),
        ({"tolerance": -1.0}, "-1.0 is below 0"),
        ({"min_gain": 1.0}, "1.0 is not from 0 to below 1"),
        ({"accuracy": "none", "allow": ("dense", "topk")}, "and topk may lose"),
    ],
)
def test_settings_that_mean_nothing_are_refused(field, message):
    with pytest.raises(InputError, match=message):
        Settings(**field)


def test_a_compressor_that_was_not_measured_names_the_remedy(build):
    profile = build.profile([1e-3] * 3, [1000] * 3)
    for solver, compressor in itertools.product(["optimal"], ["topk", "fp16"]):
        with pytest.raises(InputError, match="profile again with --compressors"):
            planned(profile, _line(build), solver, compressor=compressor)
    with pytest.raises(InputError, match="no compression costs for topk"):
        planned(profile, _line(build), "lags")
    made_up = profile.model_copy(update={"environment": {"synthetic": "by hand"}})
    with pytest.raises(InputError, match="profile the model on a device"):
        planned(made_up, _line(build), compressor="topk")
