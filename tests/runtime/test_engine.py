"""The engine against PyTorch DDP, and what it refuses."""

import copy
import json
from functools import cache

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from comm_plan import parallelize
from comm_plan.errors import InputError, MismatchError, NonFiniteError, RunError
from comm_plan.plans import (
    Bucket,
    DoubleSqueeze,
    Fp16,
    Plan,
    PlannedModel,
    Qsgd,
    Replan,
    TopK,
)
from comm_plan.plans.compression.rows import Rows
from comm_plan.plans.parameters import model_fingerprint, trainable
from comm_plan.runtime.trainer import Options
from comm_plan.tests.runtime.semantics import SAME
from comm_plan.tests.runtime.trainings import Failing
from comm_plan.tests.support import forked
from comm_plan.tests.support.harness import run_ranks
from comm_plan.transports.local import LocalTransport

ORACLE = "comm_plan.tests.runtime.ddp_oracle"


@cache
def outcomes(ranks):
    return json.loads(forked.run(ORACLE, ranks).stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SAME)
def test_two_ranks_give_bitwise_the_parameters_of_ddp(scenario):
    """A sum of two numbers does not depend on their order."""
    assert outcomes(2)[scenario] == "same"


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SAME)
def test_three_ranks_give_the_parameters_of_ddp_up_to_rounding(scenario):
    assert outcomes(3)[scenario] in ("same", "close")


def small():
    """A model with the same parameters on every thread, whatever others draw."""
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return model


def plan_for(model, world_size=1, *, buckets=None, **changes):
    names = tuple(trainable(model))[::-1]
    return Plan(
        solver="hand",
        model=PlannedModel(name="small", fingerprint=model_fingerprint(model)),
        world_size=world_size,
        backend="local",
        buckets=buckets or (Bucket(tensors=names[:2]), Bucket(tensors=names[2:])),
    ).model_copy(update=changes)


def loss_of(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return model(torch.randn(4, 6, generator=generator)).square().mean()


def test_another_world_size_is_refused_with_the_remedy():
    model = small()
    with pytest.raises(MismatchError, match="--world-size 1"):
        parallelize(model, plan_for(model, world_size=4), transport=LocalTransport())


def test_a_tensor_missing_in_the_plan_is_named():
    model = small()
    plan = plan_for(model, buckets=(Bucket(tensors=("0.weight",)),))
    with pytest.raises(MismatchError, match=r"0\.bias"):
        parallelize(model, plan, transport=LocalTransport())


def test_a_tensor_missing_in_the_model_is_named():
    model = small()
    plan = plan_for(model, buckets=(Bucket(tensors=(*trainable(model), "9.weight")),))
    with pytest.raises(MismatchError, match=r"9\.weight"):
        parallelize(model, plan, transport=LocalTransport())


def test_other_shapes_are_refused():
    plan = plan_for(small())
    other = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3))
    with pytest.raises(MismatchError, match="shapes"):
        parallelize(other, plan, transport=LocalTransport())


def test_a_compressor_that_cannot_take_a_dtype_is_refused_by_name():
    model = small().double()
    names = tuple(trainable(model))
    bucket = Bucket(tensors=names, compressor=Qsgd(), collective="allgather")
    plan = plan_for(model, buckets=(bucket,))
    with pytest.raises(MismatchError, match=r"qsgd .*0\.weight .*float64"):
        parallelize(model, plan, transport=LocalTransport())


def test_ranks_with_different_models_learn_the_first_difference():
    """All of them, also the one that the plan is for."""
    buckets = (Bucket(tensors=("weight", "bias")),)
    plan = plan_for(nn.Linear(4, 3), 2, buckets=buckets)

    def rank(transport):
        model = nn.Linear(4, 3 + transport.rank)
        with pytest.raises(MismatchError) as caught:
            parallelize(model, plan, transport=transport)
        return str(caught.value)

    (message,) = set(run_ranks(2, rank))
    assert message == (
        "parameter weight on rank 1: shape [4, 4], float32; on rank 0: shape "
        "[3, 4], float32: build the same model on every rank"
    )


@pytest.mark.parametrize(
    ("differ", "message"),
    [
        (
            lambda model, rank: model.register_buffer("own", torch.zeros(2 + rank)),
            "buffer own on rank 1: shape [3], float32; on rank 0: shape [2], float32: ",
        ),
        (
            lambda model, rank: model.register_parameter(
                "own", nn.Parameter(torch.zeros(2 + rank), requires_grad=False)
            ),
            "parameter own on rank 1: shape [3], float32, frozen; on rank 0: shape "
            "[2], float32, frozen: ",
        ),
    ],
    ids=["buffer", "frozen parameter"],
)
def test_ranks_with_different_tensors_that_nobody_trains_learn_it_too(differ, message):
    """Brought to rank 0's end to end, all that follow would be shifted."""

    def rank(transport):
        model = small()
        plan = plan_for(model, 2)
        differ(model, transport.rank)
        with pytest.raises(MismatchError) as caught:
            parallelize(model, plan, transport=transport)
        return str(caught.value)

    expected = f"{message}build the same model on every rank"
    assert run_ranks(2, rank) == [expected] * 2


def test_ranks_with_different_plans_are_refused():
    def rank(transport):
        model = small()
        plan = plan_for(model, 2, solver=f"solver-{transport.rank}")
        with pytest.raises(MismatchError, match="rank 1 has plan"):
            parallelize(model, plan, transport=transport)

    run_ranks(2, rank)


def test_a_missing_gradient_is_an_error_that_names_the_parameter():
    model = nn.ModuleDict({"used": nn.Linear(6, 3), "spare": nn.Linear(6, 3)})
    plan = plan_for(model)
    engine = parallelize(model, plan, transport=LocalTransport())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model["used"](torch.ones(2, 6)).sum().backward()
    with pytest.raises(RunError, match=r"spare\.(weight|bias)"):
        optimizer.step()
    engine.close()


def assign_all(model):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda model: model[0].requires_grad_(True), "0.weight"),
        (lambda model: model.append(nn.Linear(3, 3)), "3.weight"),
        (assign_all, "2.weight"),
    ],
    ids=["unfrozen", "added", "assigned by load_state_dict"],
)
@pytest.mark.parametrize("find_unused_parameters", [False, True])
def test_a_parameter_that_is_trained_only_later_is_refused_by_name(
    change, name, find_unused_parameters
):
    """Its gradients would be each rank's own, and the ranks come apart."""
    model = small()
    model[0].requires_grad_(False)
    with parallelize(
        model,
        plan_for(model, buckets=(Bucket(tensors=("2.weight", "2.bias")),)),
        transport=LocalTransport(),
        find_unused_parameters=find_unused_parameters,
    ):
        change(model)
        optimizer = torch.optim.SGD(model.parameters())
        loss_of(model).backward()
        with pytest.raises(RunError, match=f"parameter {name} is trained, but was fro"):
            optimizer.step()
    optimizer.step()


def test_an_optimizer_of_two_models_takes_what_the_engine_does_not_average():
    model, other = small(), small()
    with parallelize(model, plan_for(model), transport=LocalTransport()):
        optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()])
        for _ in range(2):
            (loss_of(model) + loss_of(other)).backward()
            optimizer.step()


def test_a_sparse_gradient_outside_of_the_plan_is_refused_by_name():
    model = nn.Embedding(10, 4, sparse=True)
    plan = plan_for(model, buckets=(Bucket(tensors=("weight",)),))
    engine = parallelize(model, plan, transport=LocalTransport())
    with pytest.raises(Exception, match="weight has a sparse gradient"):
        model(torch.tensor([1, 2])).sum().backward()
    engine.close()


def words():
    """A table of which a step uses some rows, and a plan for it."""
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=generator)
    rows = Bucket(tensors=("0.weight",), compressor=Rows(), collective="allgather")
    rest = Bucket(tensors=("1.bias", "1.weight"))
    return model, (rest, rows)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_rows_that_only_some_ranks_have_are_averaged(size):
    """Those of the last rank are missing; where there is one rank, in every second."""

    def rank(transport):
        model, buckets = words()
        plan = plan_for(model, size, buckets=buckets)
        engine = parallelize(
            model, plan, transport=transport, find_unused_parameters=True
        )
        tokens = torch.tensor([transport.rank, transport.rank + 1, 7])
        inputs = model[0](tokens) if transport.rank < size - 1 else torch.ones(3, 4)
        model[1](inputs).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()  # no forward of the model
        engine.close()
        return model[0].weight.grad

    row = words()[0][1].weight.detach().sum(0) / size
    expected = torch.zeros(10, 4)
    for other in range(size - 1):
        for token in (other, other + 1, 7):
            expected[token] += row
    for gradient in run_ranks(size, rank):
        if size == 1:
            assert gradient is None
            continue
        assert gradient.is_sparse
        torch.testing.assert_close(gradient.to_dense(), expected)
        assert gradient.coalesce().indices().shape[1] == expected.any(1).sum()


@pytest.mark.parametrize("on_nonfinite", ["skip", "propagate"])
def test_inf_in_a_row_concerns_all_ranks(on_nonfinite):
    def rank(transport):
        model, buckets = words()
        plan = plan_for(model, 2, buckets=buckets)
        engine = parallelize(
            model, plan, transport=transport, on_nonfinite=on_nonfinite
        )
        factor = torch.inf if transport.rank == 1 else 1.0
        inputs = model[0](torch.tensor([1, transport.rank]))
        (model[1](inputs) * torch.tensor([1.0, factor])).sum().backward()
        engine.close()
        return engine.last_step_skipped, model[0].weight.grad

    for skipped, gradient in run_ranks(2, rank):
        assert skipped == (on_nonfinite == "skip")
        assert gradient is None if skipped else not gradient.to_dense().isfinite().all()


def compressed_plan(model, world_size, spec=None, collective="allgather"):
    spec = spec or TopK(density=0.2)
    names = tuple(trainable(model))[::-1]
    return plan_for(
        model,
        world_size,
        buckets=(
            Bucket(tensors=names[:2], compressor=spec, collective=collective),
            Bucket(tensors=names[2:], compressor=spec, collective=collective),
        ),
    )


def poisoned_step(transport, on_nonfinite, collective):
    """Return engine, model and all residuals before and after a step with NaN."""
    model = small()
    plan = compressed_plan(model, transport.world_size, collective=collective)
    engine = parallelize(model, plan, transport=transport, on_nonfinite=on_nonfinite)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(seed, factor=1.0):
        optimizer.zero_grad()
        (loss_of(model, seed + transport.rank) * factor).backward()
        optimizer.step()

    step(1)
    before = [p.detach().clone() for p in model.parameters()]
    error = None
    try:
        step(2, torch.nan if transport.rank == 1 else 1.0)
    except NonFiniteError as caught:
        error = str(caught)
    after = [p.detach().clone() for p in model.parameters()]
    gradients = [p.grad for p in model.parameters()]
    residuals = [
        tensor
        for quantities in engine.remembered().values()
        for tensor in quantities.values()
    ]
    engine.close()
    return before, after, gradients, residuals, error


@pytest.mark.parametrize("collective", ["allgather", "gtopk"])
@pytest.mark.parametrize("on_nonfinite", ["skip", "stop", "propagate"])
def test_nan_on_one_rank_never_reaches_a_residual(on_nonfinite, collective):
    for before, after, gradients, residuals, error in run_ranks(
        3, poisoned_step, on_nonfinite, collective
    ):
        assert all(torch.isfinite(residual).all() for residual in residuals)
        if on_nonfinite == "skip":
            assert all(gradient is None for gradient in gradients)
        if on_nonfinite == "propagate":
            assert all(gradient.isnan().all() for gradient in gradients)
        else:
            assert all(map(torch.equal, before, after))
        assert (error is not None) == (on_nonfinite == "stop")
        assert error is None or "rank 1" in error


@pytest.mark.parametrize(
    ("on_nonfinite", "said"),
    [("skip", "the step is skipped on all ranks"), ("propagate", "is NaN on all rank")],
)
def test_what_becomes_of_a_step_with_nan_is_said(on_nonfinite, said, caplog):
    model = small()
    names = tuple(trainable(model))
    topk = Bucket(tensors=names, compressor=TopK(density=0.5), collective="allgather")
    plan = plan_for(model, buckets=(topk,))
    transport = LocalTransport()
    with parallelize(model, plan, transport=transport, on_nonfinite=on_nonfinite):
        (loss_of(model) * torch.nan).backward()
    assert said in caplog.text


def test_a_nan_of_a_dense_bucket_skips_the_step_too():
    model = small()
    engine = parallelize(
        model, plan_for(model), transport=LocalTransport(), on_nonfinite="skip"
    )
    (loss_of(model) * torch.nan).backward()
    assert engine.skipped_steps == 1
    assert all(p.grad is None for p in model.parameters())
    engine.close()


def test_a_mean_that_overflows_takes_nothing_of_other_buckets_along():
    """Every gradient is finite, their sum in 16 bits is not; scalers skip it."""

    def rank(transport):
        model = small()
        names = tuple(trainable(model))[::-1]
        sparse = {"compressor": TopK(density=0.2), "collective": "allgather"}
        buckets = (
            Bucket(tensors=names[:2], compressor=Fp16()),
            Bucket(tensors=names[2:], **sparse),
        )
        plan = plan_for(model, 2, buckets=buckets)
        with parallelize(model, plan, transport=transport) as engine:
            loss_of(model, transport.rank).backward()
            before = copy.deepcopy(engine.remembered())
            model.zero_grad()
            model[2].bias.register_hook(lambda gradient: gradient * 0 + 1.5e5)
            loss_of(model, transport.rank).backward()
            assert engine.last_step_skipped
            after = engine.remembered()
        assert all(p.grad.isnan().all() for p in model.parameters())
        gradients = small()
        loss_of(gradients, transport.rank).backward()
        for name in names[2:]:
            made = gradients.get_parameter(name).grad.flatten()
            left = before[name]["residual"] + made
            torch.testing.assert_close(after[name]["residual"], left)

    run_ranks(2, rank)


def run_steps(transport, first, second, steps=3):
    """Train `steps` under `first`, carry the state to a new engine under `second`."""
    model = small()
    engine = parallelize(model, first(model, transport.world_size), transport=transport)
    total = {name: torch.zeros_like(p) for name, p in trainable(model).items()}
    applied = {name: torch.zeros_like(p) for name, p in trainable(model).items()}
    references = [small() for _ in range(transport.world_size)]

    def step(seed):
        model.zero_grad()
        loss_of(model, seed + 10 * transport.rank).backward()
        for rank, reference in enumerate(references):
            reference.load_state_dict(model.state_dict())
            reference.zero_grad()
            loss_of(reference, seed + 10 * rank).backward()
            for name, p in trainable(reference).items():
                total[name] += p.grad
        for name, p in trainable(model).items():
            applied[name] += transport.world_size * p.grad

    for seed in range(steps):
        step(seed)
    state = engine.state_dict()
    engine.close()
    engine = parallelize(
        model, second(model, transport.world_size), transport=transport
    )
    engine.load_state_dict(state)
    for seed in range(steps, 2 * steps):
        step(seed)
    left = engine.remembered()
    engine.close()
    for name in total:
        residual = left.get(name, {}).get("residual", torch.zeros(total[name].numel()))
        transport.all_reduce(residual)
        torch.testing.assert_close(
            total[name].flatten(),
            applied[name].flatten() + residual,
            rtol=1e-4,
            atol=1e-5,
        )


def one_bucket_topk(model, world_size):
    names = tuple(trainable(model))[::-1]
    spec = TopK(density=0.5)
    return plan_for(
        model,
        world_size,
        buckets=(Bucket(tensors=names, compressor=spec, collective="gtopk"),),
    )


@pytest.mark.parametrize(
    "second",
    [compressed_plan, one_bucket_topk, plan_for],
    ids=["same", "gtopk", "dense"],
)
def test_no_gradient_is_lost_when_the_plan_changes(second):
    run_ranks(3, run_steps, compressed_plan, second)


def test_no_sync_leaves_residuals_alone():
    model = small()
    engine = parallelize(model, compressed_plan(model, 1), transport=LocalTransport())
    with engine.no_sync():
        loss_of(model).backward()
    tensors = engine.remembered()
    assert all(not q["residual"].any() for q in tensors.values())
    assert engine.step == 0
    engine.close()


@pytest.mark.parametrize("by_hand", [False, True], ids=["by the scaler", "by hand"])
def test_no_gradient_is_lost_when_the_scale_of_the_loss_grows(by_hand):
    """Every step has the gradient 1, 2, ...; what was not applied is left over."""
    model = nn.Linear(10, 1, bias=False)
    begin = model.weight.detach().clone()
    sparse = {"compressor": TopK(density=0.2), "collective": "allgather"}
    plan = plan_for(model, buckets=(Bucket(tensors=("weight",), **sparse),))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    own = None if by_hand else scaler
    with parallelize(
        model, plan, transport=LocalTransport(), grad_scaler=own
    ) as engine:
        for _ in range(7):
            optimizer.zero_grad()
            scale = scaler.get_scale()
            scaler.scale(model(torch.arange(1.0, 11)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            left = engine.remembered()["weight"]["residual"] / scale
            if by_hand:
                engine.rescale(scaler.get_scale() / scale)
    assert scaler.get_scale() == 8.0 * 2**3
    applied = begin - model.weight.detach()
    torch.testing.assert_close(applied.flatten() + left, 7 * torch.arange(1.0, 11))


def test_what_a_state_holds_follows_the_scale_of_the_loss():
    """Saved at a scale of 8, loaded at one of 2, and by an engine without a scaler."""
    model = small()
    plan = compressed_plan(model, 1, TopK(density=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with parallelize(
        model, plan, transport=LocalTransport(), grad_scaler=scaler
    ) as engine:
        scaler.scale(loss_of(model)).backward()
        saved = engine.state_dict()
        saved = copy.deepcopy(saved)
    unscaled = {n: q["residual"] / 8 for n, q in saved["ranks"]["0"].items()}
    for now, own in ((2.0, torch.amp.GradScaler("cpu", init_scale=2.0)), (1.0, None)):
        with parallelize(
            model, plan, transport=LocalTransport(), grad_scaler=own
        ) as engine:
            engine.load_state_dict(saved)
            model(torch.ones(2, 6))
            for name, quantities in engine.remembered().items():
                expected = unscaled[name] * now
                torch.testing.assert_close(quantities["residual"], expected)


def test_a_model_in_eval_mode_trains_as_any_other():
    """Batch norm is trained in a part of it; the scale of the loss is followed."""

    def rank(transport):
        torch.manual_seed(transport.rank)
        model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
        model.eval()
        model[1].train()
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
        names = tuple(trainable(model))
        sparse = {"compressor": TopK(density=0.2), "collective": "allgather"}
        plan = plan_for(model, 2, buckets=(Bucket(tensors=names, **sparse),))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with parallelize(
            model, plan, transport=transport, grad_scaler=scaler
        ) as engine:
            for _ in range(3):
                scaler.scale(model(torch.randn(4, 6)).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            return model[1].running_mean.clone(), engine.state_dict()["scale"]

    (mean, scale), (other, _) = run_ranks(2, rank)
    assert mean.any()
    assert torch.equal(mean, other)
    assert scale == 8.0 * 2**2  # of the third step


def test_half_precision_is_close_to_the_mean():
    def rank(transport):
        model = small()
        names = tuple(trainable(model))
        plan = plan_for(model, 3, buckets=(Bucket(tensors=names, compressor=Fp16()),))
        engine = parallelize(model, plan, transport=transport)
        loss_of(model, transport.rank).backward()
        engine.close()
        reference = small()
        for other in range(3):
            (loss_of(reference, other) / 3).backward()
        for p, q in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=2e-3, atol=1e-4)

    run_ranks(3, rank)


def test_a_dropped_engine_does_not_linger():
    model = small()
    engine = parallelize(model, plan_for(model), transport=LocalTransport())
    engine.close()
    loss_of(model).backward()
    assert engine.step == 0


def test_no_sync_counts_where_backward_runs():
    model = small()
    x = torch.ones(2, 6)
    with parallelize(model, plan_for(model), transport=LocalTransport()) as engine:
        loss = model(x).sum()
        with engine.no_sync():
            loss.backward()
        assert engine.step == 0
        with engine.no_sync():
            loss = model(x).sum()
        loss.backward()
        assert engine.step == 1


def test_a_gradient_that_was_kept_does_not_change():
    model = nn.Linear(1, 1, bias=False)
    plan = plan_for(model, buckets=(Bucket(tensors=("weight",)),))
    engine = parallelize(model, plan, transport=LocalTransport())
    kept = []
    for x in (1.0, 2.0, 3.0):
        model.zero_grad()
        model(torch.tensor([[x]])).sum().backward()
        kept.append(model.weight.grad)
    engine.close()
    assert [gradient.item() for gradient in kept] == [1.0, 2.0, 3.0]


def test_a_saved_gradient_takes_no_bucket_along():
    model = small()
    names = tuple(trainable(model))
    plan = plan_for(model, buckets=(Bucket(tensors=names),))
    engine = parallelize(model, plan, transport=LocalTransport())
    loss_of(model).backward()
    for parameter in model.parameters():
        assert parameter.grad.untyped_storage().nbytes() == parameter.grad.nbytes
    engine.close()


def test_with_bucket_views_gradients_are_parts_of_the_bucket():
    model = small()
    names = tuple(trainable(model))
    engine = parallelize(
        model,
        plan_for(model, buckets=(Bucket(tensors=names),)),
        transport=LocalTransport(),
        gradient_as_bucket_view=True,
    )
    loss_of(model).backward()
    storages = {p.grad.untyped_storage().data_ptr() for p in model.parameters()}
    assert len(storages) == 1
    engine.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_means_that_are_parts_of_the_bucket_train_as_copies_do(dtype, set_to_none):
    spec = DoubleSqueeze(bits=3, group_numel=32)

    def trained(transport, shares):
        model = small().to(dtype)
        bucket = Bucket(
            tensors=tuple(trainable(model)), compressor=spec, collective="two_pass"
        )
        plan = plan_for(model, buckets=(bucket,), world_size=2)
        options = {"transport": transport, "gradient_as_bucket_view": shares}
        engine = parallelize(model, plan, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            optimizer.zero_grad(set_to_none=set_to_none)
            scale = 1 + step * (1 + transport.rank)
            (model(torch.ones(2, 6, dtype=dtype) * scale).square().mean()).backward()
            optimizer.step()
        engine.close()
        return [p.detach().clone() for p in model.parameters()]

    copied, _ = run_ranks(2, trained, False)
    shared, other = run_ranks(2, trained, True)
    for one, two, three in zip(copied, shared, other, strict=True):
        assert one.dtype == dtype
        assert torch.equal(one, two) and torch.equal(two, three)


def test_a_second_engine_takes_the_place_of_the_first():
    model = small()
    first = parallelize(model, plan_for(model), transport=LocalTransport())
    second = parallelize(model, plan_for(model), transport=LocalTransport())
    loss_of(model).backward()
    assert (first.step, second.step) == (0, 1)
    first.close()
    loss_of(model).backward()
    assert second.step == 2
    second.close()


def test_an_engine_of_the_compiled_model_takes_the_place_of_its_own():
    model = small()
    first = parallelize(model, plan_for(model), transport=LocalTransport())
    compiled = torch.compile(model, backend="eager")
    second = parallelize(compiled, plan_for(model), transport=LocalTransport())
    loss_of(model).backward()
    assert (first.step, second.step) == (0, 1)
    second.close()


def test_a_parameter_that_two_models_share_is_averaged_by_one_engine():
    model = small()
    part = model[2]
    names = tuple(trainable(part))
    plan_of_part = plan_for(part, buckets=(Bucket(tensors=names),))
    with (
        parallelize(model, plan_for(model), transport=LocalTransport()),
        pytest.raises(InputError, match="weight belongs to another model too"),
    ):
        parallelize(part, plan_of_part, transport=LocalTransport())
    parallelize(part, plan_of_part, transport=LocalTransport()).close()


def test_models_may_share_what_none_of_them_trains():
    shared = nn.Linear(6, 5).requires_grad_(False)
    models = [nn.Sequential(shared, nn.Linear(5, 3)) for _ in range(2)]
    bucket = Bucket(tensors=("1.weight", "1.bias"))
    engines = [
        parallelize(m, plan_for(m, buckets=(bucket,)), transport=LocalTransport())
        for m in models
    ]
    for model, engine in zip(models, engines, strict=True):
        loss_of(model).backward()
        assert engine.step == 1
        engine.close()


def test_an_output_that_is_a_parameter_gathers_no_hooks():
    class Contrast(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(6, 3)
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return self.body(x), self.scale

    model = Contrast()
    plan = plan_for(model, buckets=(Bucket(tensors=tuple(trainable(model))),))
    with parallelize(model, plan, transport=LocalTransport()) as engine:
        for _ in range(3):
            output, scale = model(torch.ones(2, 6))
            (scale * output).sum().backward()
        assert engine.step == 3
    assert not model.scale._backward_hooks


def test_an_unknown_way_with_inf_and_nan_is_refused():
    model = small()
    with pytest.raises(InputError, match="'raise' is unknown: use one of stop, skip"):
        parallelize(
            model, plan_for(model), transport=LocalTransport(), on_nonfinite="raise"
        )


def test_a_seed_below_0_is_refused():
    model = small()
    with pytest.raises(InputError, match="seed -1 is below 0"):
        parallelize(model, plan_for(model), transport=LocalTransport(), seed=-1)
    with pytest.raises(InputError, match="seed -1 is below 0"):
        Options(seed=-1)


def test_a_sharded_model_is_refused_by_name(one_rank_group):
    model = small()
    plan = plan_for(model)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(InputError, match=r"parameter 0\.weight is sharded"):
        parallelize(model, plan, transport=LocalTransport())


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "own",
            nn.parameter.UninitializedBuffer(),
            "buffer own has no shape yet, as of a lazy module: call the model once",
        ),
        (
            "own",
            torch.eye(3).to_sparse(),
            "buffer own is torch.sparse_coo; ranks exchange only dense tensors: "
            "make it dense, or pass broadcast_buffers=False",
        ),
        (
            "bias",
            nn.parameter.UninitializedParameter(),
            "parameter bias has no shape yet, as of a lazy module: call the model once",
        ),
        (
            "bias",
            nn.Parameter(torch.eye(3).to_sparse()),
            "parameter bias is torch.sparse_coo; ranks exchange only dense "
            "tensors: make it dense",
        ),
    ],
)
def test_what_cannot_be_brought_to_rank_0_is_refused_by_name(name, tensor, message):
    def rank(transport):
        model = nn.Linear(6, 3)
        plan = plan_for(model, 2, buckets=(Bucket(tensors=("weight", "bias")),))
        if name == "own":
            model.register_buffer(name, tensor)
        else:
            model.register_parameter(name, tensor)
        with pytest.raises(InputError) as caught:
            parallelize(model, plan, transport=transport)
        if name == "own" and tensor.is_sparse:  # each rank keeps its own
            with parallelize(model, plan, transport=transport, broadcast_buffers=False):
                loss_of(model).backward()
        return str(caught.value)

    for said in run_ranks(2, rank):
        assert said.startswith(message)


def test_a_compiled_model_has_the_names_of_the_model():
    model = small()
    plan = plan_for(model)
    compiled = torch.compile(model, backend="eager")
    assert trainable(compiled) == trainable(model)
    engine = parallelize(compiled, plan, transport=LocalTransport())
    loss_of(compiled).backward()
    assert engine.step == 1
    engine.close()


def test_residuals_keep_their_weight_among_another_number_of_ranks():
    def saved(transport):
        model = small()
        engine = parallelize(model, compressed_plan(model, 3), transport=transport)
        loss_of(model, transport.rank).backward()
        state = engine.state_dict()
        engine.close()
        return state

    states = run_ranks(3, saved)
    merged = states[0] | {
        "ranks": {k: v for s in states for k, v in s["ranks"].items()}
    }

    def resumed(transport):
        model = small()
        engine = parallelize(model, compressed_plan(model, 2), transport=transport)
        with pytest.raises(MismatchError, match="nothing of rank 1, 2"):
            engine.load_state_dict(states[0])
        engine.load_state_dict(merged)
        remembered = engine.remembered()
        engine.close()
        return remembered

    shares = run_ranks(2, resumed)
    for name in shares[0]:
        before = sum(s["ranks"][str(r)][name]["residual"] for r, s in enumerate(states))
        after = sum(share[name]["residual"] for share in shares)
        torch.testing.assert_close(after / 2, before / 3)


def trained(transport, in_backward):
    """Return the parameters after steps of one optimizer, or of one for each bucket."""
    model = small()
    plan = plan_for(model, transport.world_size)
    engine = parallelize(model, plan, transport=transport)
    taken = []
    if in_backward:
        optimizers = {p: torch.optim.Adam([p], lr=0.1) for p in model.parameters()}

        def step(parameters):
            for parameter in parameters:
                optimizers[parameter].step()
                parameter.grad = None
            taken.append(parameters)

        engine.on_reduced(step)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for number in range(3):
        with engine.no_sync():
            loss_of(model, 10 * number + transport.rank).backward()
        loss_of(model, 100 * number + transport.rank).backward()
        if not in_backward:
            optimizer.step()
            optimizer.zero_grad()
    engine.close()
    assert taken == [b.parameters for b in engine.buckets] * 3 * in_backward
    return list(model.parameters())


def test_an_optimizer_in_backward_does_what_one_after_it_does():
    """It steps on each bucket as soon as its means are there."""
    after = run_ranks(2, lambda transport: trained(transport, in_backward=False))
    within = run_ranks(2, lambda transport: trained(transport, in_backward=True))
    for theirs, ours in zip(after, within, strict=True):
        assert all(map(torch.equal, theirs, ours))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"on_nonfinite": "skip"}, "on_nonfinite='skip' may still refuse"),
        ({"on_nonfinite": "stop"}, "on_nonfinite='stop' may still refuse"),
        ({"find_unused_parameters": True}, "find_unused_parameters=True fills in"),
        ({"grad_scaler": torch.amp.GradScaler("cpu")}, "a GradScaler may still"),
        ({"spec": TopK(density=0.5)}, "under topk the flags"),
    ],
)
def test_on_reduced_is_refused_where_a_mean_is_not_final(options, reason):
    options = dict(options)
    model, spec = small(), options.pop("spec", None)
    plan = plan_for(model) if spec is None else compressed_plan(model, 1, spec)
    with parallelize(model, plan, transport=LocalTransport(), **options) as engine:
        with pytest.raises(InputError, match=f"on_reduced: {reason}"):
            engine.on_reduced(lambda parameters: None)
        engine.on_reduced(None)


def test_a_scaler_that_is_switched_off_refuses_no_step():
    model, off = small(), torch.amp.GradScaler("cpu", enabled=False)
    options = {"grad_scaler": off, "transport": LocalTransport()}
    with parallelize(model, plan_for(model), **options) as engine:
        engine.on_reduced(lambda parameters: None)


@pytest.mark.parametrize(
    ("density", "thrown_away", "warned"),
    [(0.5, 3, 1), (None, 3, 0), (0.5, 0, 0)],
    ids=["residuals", "dense", "taken"],
)
def test_gradients_that_are_thrown_away_after_a_step_are_told_of_once(
    density, thrown_away, warned, caplog
):
    model = small()
    plan = plan_for(model)
    if density is not None:
        plan = compressed_plan(model, 1, TopK(density=density))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with parallelize(model, plan, transport=LocalTransport()):
        for _ in range(4):
            model(torch.ones(2, 6)).sum().backward()
            if not thrown_away:
                optimizer.step()
            optimizer.zero_grad()
    told = [r for r in caplog.records if "thrown away" in r.getMessage()]
    assert len(told) == warned


def test_a_plan_under_which_a_mean_is_not_final_is_not_swapped_in():
    model = small()
    times = {"expected_s": 1.0, "corrected_s": 1.0, "predicted_s": 1.0}
    replan = Replan(step=0, reason="test", plan_sha256="", **times)
    with parallelize(model, plan_for(model), transport=LocalTransport()) as engine:
        engine.on_reduced(lambda parameters: None)
        with pytest.raises(InputError, match="under topk"):
            engine.swap(compressed_plan(model, 1, TopK(density=0.5)), replan)


def fail_half_way(model):
    """Run a backward that raises once the last layer has its gradients."""
    with pytest.raises(MemoryError):
        model[2](model[1](Failing.apply(model[0](torch.ones(2, 6))))).sum().backward()


def fail_before_the_model(model):
    with pytest.raises(MemoryError):
        raise MemoryError("no room for a batch")


def fail_in_the_loss(model):
    with pytest.raises(MemoryError):
        Failing.apply(loss_of(model)).backward()


@pytest.mark.parametrize("compressor", [None, TopK(density=0.5)], ids=["dense", "topk"])
@pytest.mark.parametrize(
    "fail", [fail_half_way, fail_in_the_loss, fail_before_the_model]
)
def test_a_step_that_failed_on_one_rank_is_skipped_by_all(fail, compressor):
    """Also of a model with buffers, which are brought from rank 0 after each step."""

    def rank(transport):
        model = small()
        model.register_buffer("seen", torch.full((3,), float(transport.rank)))
        plan = plan_for(model, 2)
        if compressor is not None:
            plan = compressed_plan(model, 2, compressor)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with parallelize(
            model, plan, transport=transport, on_nonfinite="skip"
        ) as engine:
            if transport.rank == 0:
                fail(model)
                engine.skip_step()
            else:
                loss_of(model, 1).backward()
            assert engine.last_step_skipped
            optimizer.step()
            before = copy.deepcopy(model.state_dict())
            loss_of(model, transport.rank).backward()
            optimizer.step()
            assert (engine.step, engine.skipped_steps) == (2, 1)
            return before, model.state_dict()

    ranks = run_ranks(2, rank)
    for before, after in ranks:
        assert not after["seen"].any()
        for name, begin in small().state_dict().items():
            assert torch.equal(before[name], begin)
            assert torch.equal(after[name], ranks[0][1][name])
            assert not torch.equal(after[name], begin)


def test_a_buffer_that_takes_the_place_of_another_follows_rank_0():
    """Also of a module inside; modules without any are passed over."""

    def rank(transport):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
        plan = plan_for(model, 2)
        with parallelize(model, plan, transport=transport):
            model[1].running_mean = torch.full((2,), float(transport.rank + 1))
            model(torch.ones(4, 2)).sum().backward()
            return model[1].running_mean

    first, other = run_ranks(2, rank)
    assert torch.equal(first, other)
    assert first.abs().max() < 2  # rank 1's began at 2, and moves by a tenth


def test_buffers_that_do_not_follow_rank_0_stay_each_ranks_own():
    """From the beginning, as with DDP; also at the end of ``Join``."""

    def rank(transport):
        model = small()
        model.register_buffer("own", torch.tensor(float(transport.rank)))
        plan = plan_for(model, 2)
        with parallelize(
            model, plan, transport=transport, broadcast_buffers=False
        ) as engine:
            loss_of(model).backward()
            engine.take_over(True)
            return model.own.item()

    assert run_ranks(2, rank) == [0.0, 1.0]


def test_a_dense_step_that_failed_spoils_no_model():
    """No rank looks at what it got: who failed sends nothing and says so."""

    def rank(transport):
        model = small()
        with parallelize(model, plan_for(model, 2), transport=transport):
            if transport.rank == 0:
                fail_half_way(model)
                model(torch.ones(2, 6))
            loss_of(model).backward()

    with pytest.raises(RunError, match="pass on_nonfinite='skip'"):
        run_ranks(2, rank)


def test_a_backward_that_failed_leaves_nothing_to_the_next():
    model, reference = small(), small()
    with parallelize(model, plan_for(model), transport=LocalTransport()):
        fail_half_way(model)
        model.zero_grad()
        loss_of(model).backward()
    loss_of(reference).backward()
    for parameter, expected in zip(
        model.parameters(), reference.parameters(), strict=True
    ):
        assert torch.equal(parameter.grad, expected.grad)


def test_a_backward_that_failed_after_on_reduced_is_not_skipped():
    model = small()
    with parallelize(model, plan_for(model), transport=LocalTransport()) as engine:
        engine.on_reduced(lambda parameters: None)

        def fail(gradient):
            raise MemoryError("no room")

        output = model[1](model[0](torch.ones(2, 6)))
        output.register_hook(fail)
        with pytest.raises(MemoryError):
            model[2](output).sum().backward()
        with pytest.raises(RunError, match=r"on_reduced .* from a checkpoint"):
            model(torch.ones(2, 6))


def test_what_on_reduced_raises_backward_raises():
    model = small()
    with parallelize(model, plan_for(model), transport=LocalTransport()) as engine:

        def fail(parameters):
            raise ValueError("too large")

        engine.on_reduced(fail)
        with pytest.raises(ValueError, match="too large"):
            loss_of(model).backward()


def test_zeros_that_zero_grad_leaves_are_no_gradient():
    """Of a parameter that no rank uses what is left of it waits."""
    model = small()
    plan = compressed_plan(model, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    with parallelize(
        model, plan, transport=LocalTransport(), find_unused_parameters=True
    ) as engine:
        model(x).sum().backward()
        optimizer.step()
        waiting = copy.deepcopy(engine.remembered())
        assert waiting["2.weight"]["residual"].any()
        optimizer.zero_grad(set_to_none=False)
        model[0](x).sum().backward()
        optimizer.step()
        assert engine.step == 2
        now = engine.remembered()
    assert not model[2].weight.grad.any()
    assert torch.equal(now["2.weight"]["residual"], waiting["2.weight"]["residual"])
    assert not torch.equal(now["0.weight"]["residual"], waiting["0.weight"]["residual"])
