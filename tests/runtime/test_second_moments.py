"""Claims about per-sample second moments, against a loop over samples."""

import copy
import pickle
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import linear, one_hot

from comm_plan.errors import MismatchError
from comm_plan.plans.profile import SecondMoments
from comm_plan.runtime.second_moments import (
    ExactSecondMoments,
    MicroBatchSecondMoments,
    closed_forms,
)
from comm_plan.runtime.second_moments.batch import cut
from comm_plan.runtime.second_moments.choice import common, survey
from comm_plan.runtime.second_moments.survey import Survey
from comm_plan.workloads.char_lm import CharGpt

quick = settings(max_examples=15)
sizes = st.integers(1, 4)
seeds = st.integers(0, 2**32 - 1)


class Scale(nn.Module):
    """A layer that nobody has a closed form for."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        """Return a tensor shaped like ``x``."""
        return torch.tanh(x * self.scale) * self.scale


def mean_loss(model, inputs):
    """Return the mean over samples of a loss that is not linear in the output."""
    per_sample = torch.sin(model(inputs)).flatten(1).square().sum(1)
    return per_sample.mean()


def loop_over_samples(model, inputs):
    """Return the second moments of all trained parameters, sample by sample."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    totals = [torch.zeros_like(p) for p in parameters]
    for sample in inputs.split(1):
        loss = mean_loss(model, sample) / len(inputs)
        gradients = torch.autograd.grad(loss, parameters)
        for total, gradient in zip(totals, gradients, strict=True):
            total += gradient.square()
    return totals


def exact(model, inputs):
    """Return what is there when each parameter's gradient is ready."""
    moments, found = ExactSecondMoments(model), {}
    handles = [
        parameter.register_post_accumulate_grad_hook(
            lambda p: found.update({p: moments.of(p)})
        )
        for parameter in model.parameters()
        if parameter.requires_grad
    ]
    mean_loss(model, inputs).backward()
    for handle in handles:
        handle.remove()
    moments.remove()
    return [found[p] for p in model.parameters() if p.requires_grad]


def check(model, inputs):
    model.double()
    inputs = inputs if inputs.dtype == torch.int64 else inputs.double()
    expected = loop_over_samples(model, inputs)
    for moment, oracle in zip(exact(model, inputs), expected, strict=True):
        torch.testing.assert_close(moment, oracle)


@given(batch=sizes, width=sizes, hidden=sizes, seed=seeds)
@quick
def test_mlp(batch, width, hidden, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(width, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, 3)
    )
    check(model, torch.randn(batch, width))


@given(
    batch=sizes,
    length=sizes,
    width=sizes.filter(lambda width: width > 1),  # of one, a norm leaves only zeros
    hidden=sizes,
    seed=seeds,
)
@quick
def test_linear_and_norms_over_sequences(batch, length, width, hidden, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, hidden, bias=False),
        nn.LayerNorm([length, hidden]),
        nn.RMSNorm(hidden),
        nn.Linear(hidden, 2),
    )
    check(model, torch.randn(batch, length, width))


@given(
    batch=sizes,
    groups=st.integers(1, 2),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 2),
    padding=st.tuples(st.integers(0, 1), st.integers(0, 2)),
    dilation=st.integers(1, 2),
    padding_mode=st.sampled_from(["zeros", "circular", "replicate"]),
    seed=seeds,
)
@quick
def test_cnn(batch, groups, kernel, stride, padding, dilation, padding_mode, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(
            2 * groups,
            4,
            kernel,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            padding_mode=padding_mode,
        ),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    check(model, torch.randn(batch, 2 * groups, 6, 7))


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"padding": 1}])
@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_convolutions_of_points(kernel, groups, options, mode, memory):
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 6, kernel, groups=groups, padding_mode=mode, **options)
    check(layer.to(memory_format=memory), torch.randn(3, 4, 5, 6))


@given(
    batch=sizes,
    kernel=st.integers(1, 4),
    padding=st.sampled_from(["same", "valid", 2]),
    seed=seeds,
)
@quick
def test_cnn_over_one_dimension(batch, kernel, padding, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv1d(3, 4, kernel, padding=padding), nn.Tanh(), nn.Conv1d(4, 2, 1)
    )
    if padding == "same" and kernel % 2 == 0:
        model[0] = nn.Conv1d(3, 4, kernel + 1, padding=padding, dilation=2)
    check(model, torch.randn(batch, 3, 9))


@given(
    batch=sizes,
    length=sizes,
    padding_idx=st.sampled_from([None, 1]),
    seed=seeds,
)
@quick
def test_embedding_sums_the_uses_within_a_sample(batch, length, padding_idx, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(5, 3, padding_idx=padding_idx), nn.Linear(3, 2))
    check(model, torch.randint(5, (batch, length)))


def test_the_built_in_language_model():
    torch.manual_seed(0)
    model = CharGpt(width=8, heads=2, blocks=1)
    check(model, torch.randint(128, (3, 6)))


@given(batch=sizes, width=sizes, seed=seeds)
@quick
def test_layers_without_closed_form_are_vectorised(batch, width, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(width, 2),
        Scale(2),
        nn.PReLU(),
        nn.Unflatten(1, (2, 1)),
        nn.ConvTranspose1d(2, 3, 2),
    )
    check(model, torch.randn(batch, width))


def test_a_known_layer_with_a_parameter_of_its_own_is_vectorised():
    torch.manual_seed(0)
    layer, inputs = nn.Linear(3, 3).double(), torch.randn(4, 3).double()
    expected = loop_over_samples(layer, inputs)
    layer.spare = nn.Parameter(torch.rand(3))
    moments = ExactSecondMoments(layer)
    mean_loss(layer, inputs).backward()
    torch.testing.assert_close(moments.of(layer.weight), expected[0])
    assert not moments.of(layer.spare).any()  # which nothing uses


@pytest.mark.parametrize("chunk", [1, 50, 10**6])
def test_the_size_of_chunks_changes_nothing(chunk, monkeypatch):
    monkeypatch.setattr(closed_forms, "CACHED_NUMEL", chunk)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Linear(6, 4))
    check(model, torch.randn(5, 2, 8))


def test_frozen_parameters_and_frozen_batch_norm_are_left_alone():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[1].eval().requires_grad_(False)
    model[0].weight.requires_grad_(False)
    check(model, torch.randn(5, 3))


def test_backward_passes_add_up_until_they_are_asked_for():
    torch.manual_seed(0)
    model, inputs = nn.Linear(3, 2).double(), torch.randn(6, 3).double()
    expected = loop_over_samples(model, inputs)
    moments = ExactSecondMoments(model)
    for half in inputs.chunk(2):
        (mean_loss(model, half) / 2).backward()
    torch.testing.assert_close(moments.of(model.weight), expected[0])
    with pytest.raises(MismatchError, match="parameter weight"):
        moments.of(model.weight)


@pytest.mark.parametrize("scale", [1e-5, 2.0**12])
def test_a_backward_within_autocast_has_the_same_moments(scale):
    """In float16 squares of small gradients would vanish, of scaled ones overflow."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    moments = ExactSecondMoments(model)
    found = []
    for within in (False, True):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = scale * model(torch.ones(3, 4)).mean()
        with torch.autocast("cpu", dtype=torch.float16, enabled=within):
            loss.backward()
        found.append([moments.of(parameter) for parameter in model.parameters()])
    assert all(map(torch.equal, *found))
    assert all(moment.isfinite().all() and moment.any() for moment in found[0])


def test_evaluation_in_between_leaves_no_trace():
    torch.manual_seed(0)
    model, inputs = nn.Linear(3, 2).double(), torch.randn(6, 3).double()
    expected = loop_over_samples(model, inputs)
    moments = ExactSecondMoments(model)
    mean_loss(model, inputs[:2])  # never backward
    with torch.no_grad():
        mean_loss(model, inputs[:1])
    mean_loss(model, inputs).backward()
    torch.testing.assert_close(moments.of(model.weight), expected[0])


def test_only_wanted_parameters_are_computed():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    moments = ExactSecondMoments(model, [model[1].weight])
    mean_loss(model, torch.randn(4, 3)).backward()
    assert moments.of(model[1].weight).shape == (2, 2)
    with pytest.raises(MismatchError, match=r"parameter 0\.weight"):
        moments.of(model[0].weight)


def test_batch_normalisation_is_refused_by_name():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with pytest.raises(MismatchError, match=r"layer 1 .*MicroBatchSecondMoments"):
        ExactSecondMoments(model)


def test_shared_parameters_are_refused_by_name():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    with pytest.raises(MismatchError, match=r"0\.weight is shared with 1\.weight"):
        ExactSecondMoments(model)


def test_frequencies_of_the_batch_are_refused_by_name():
    model = nn.Sequential(nn.Embedding(3, 3, scale_grad_by_freq=True))
    with pytest.raises(MismatchError, match="layer 0 "):
        ExactSecondMoments(model)


class Named(nn.Module):
    """Calls its layer ``fc`` in the way a test wants."""

    def __init__(self, call):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.lstm = nn.LSTM(3, 3, batch_first=True)
        self.call = call

    def forward(self, x):
        """Return what ``call`` makes of ``x``."""
        return self.call(self, x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: m.fc(m.fc(x)), "layer fc .* more than once"),
        (lambda m, x: m.fc(x.flatten(0, 1)).view(4, -1), r"layer fc .*\[8, 3\].* of 4"),
        (lambda m, x: m.fc(input=x), "layer fc .* positional"),
        (lambda m, x: m.lstm(x)[0], "layer lstm .* positional"),
    ],
)
def test_uses_that_hide_samples_are_refused_by_name(call, message):
    model = Named(call)
    moments = ExactSecondMoments(model)
    with pytest.raises(MismatchError, match=message):
        mean_loss(model, torch.randn(4, 2, 3)).backward()
    moments.remove()


def test_a_layer_used_past_its_module_has_no_moments():
    model = Named(lambda m, x: linear(x, m.fc.weight))
    moments = ExactSecondMoments(model)
    mean_loss(model, torch.randn(4, 2, 3)).backward()
    with pytest.raises(MismatchError, match=r"parameter fc\.weight"):
        moments.of(model.fc.weight)


def test_a_random_layer_is_refused_by_name():
    class Noisy(Scale):
        def forward(self, x):
            return super().forward(x) * torch.rand_like(x)

    model = nn.Sequential(Noisy(3))
    moments = ExactSecondMoments(model)
    with pytest.raises(MismatchError, match=r"layer 0 \(Noisy\) cannot be vectorised"):
        mean_loss(model, torch.randn(4, 3)).backward()
    moments.remove()


def test_removed_hooks_compute_nothing():
    model = nn.Linear(3, 2)
    moments = ExactSecondMoments(model)
    moments.remove()
    mean_loss(model, torch.randn(4, 3)).backward()
    with pytest.raises(MismatchError):
        moments.of(model.weight)


def tripled_by_a_hook(layer):
    layer.register_forward_hook(lambda module, inputs, output: 3 * output)


def doubled_by_a_forward_of_its_own(layer):
    layer.forward = lambda x: linear(x, 2 * layer.weight, layer.bias)


@pytest.mark.parametrize("change", [tripled_by_a_hook, doubled_by_a_forward_of_its_own])
def test_a_layer_that_somebody_has_changed_has_no_closed_form(change):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    change(model[0])
    inputs = torch.randn(5, 3).double()
    for found, oracle in zip(
        exact(model, inputs), loop_over_samples(model, inputs), strict=True
    ):
        torch.testing.assert_close(found, oracle)


def test_a_layer_whose_forward_changes_its_buffers_is_refused_and_left_alone():
    """As the spectral_norm of old, whose powers would be iterated twice."""
    model = nn.utils.spectral_norm(nn.Linear(3, 4))
    twin = copy.deepcopy(model)
    moments = ExactSecondMoments(model)
    inputs = torch.randn(5, 3)
    twin(inputs)
    with pytest.raises(MismatchError, match="its forward changes its buffer weight_u"):
        mean_loss(model, inputs).backward()
    moments.remove()
    assert torch.equal(model.weight_u, twin.weight_u)


def micro_batches(model, inputs, m):
    moments = MicroBatchSecondMoments(model, m)
    for part in inputs.chunk(m):
        (mean_loss(model, part) / m).backward()
    estimates = [moments.of(parameter) for parameter in model.parameters()]
    moments.remove()
    model.zero_grad()
    return estimates


@given(batch=st.integers(2, 5), width=sizes, seed=seeds)
@quick
def test_micro_batches_of_one_sample_are_exact(batch, width, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(width, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    inputs = torch.randn(batch, width).double()
    estimates = micro_batches(model, inputs, batch)
    for estimate, oracle in zip(
        estimates, loop_over_samples(model, inputs), strict=True
    ):
        torch.testing.assert_close(estimate, oracle)


@pytest.mark.parametrize("m", [2, 4])
def test_the_estimate_is_unbiased_also_where_the_mean_is_large(m):
    batch, draws = 8, 20_000
    generator = torch.Generator().manual_seed(0)
    mean = torch.tensor([0.0, 0.5, 3.0], dtype=torch.float64)
    samples = torch.randn(batch, draws, 3, generator=generator).double() + mean

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(draws, 3, dtype=torch.float64))

        def forward(self, x):  # the gradient of sample z is x_z
            return (x * self.weight).flatten(1).sum(1)

    model = Inner()
    moments = MicroBatchSecondMoments(model, m)
    for part in samples.chunk(m):
        (model(part).mean() / m).backward()
    average = moments.of(model.weight).mean(0)
    exact = (samples / batch).square().sum(0).mean(0)
    torch.testing.assert_close(average, exact, rtol=0.02, atol=0)


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def forward(self, x):
        return (self.weight * x[:, None]).abs()


@pytest.mark.parametrize("first", [nn.Embedding(5, 3, sparse=True), Turned()])
def test_micro_batches_leave_sparse_and_complex_gradients_alone(first):
    """Nothing that takes them needs second moments."""
    model = nn.Sequential(first, nn.Linear(3, 2))
    moments = MicroBatchSecondMoments(model, 2)
    for part in torch.arange(4).chunk(2):
        (mean_loss(model, part) / 2).backward()
    assert not moments.knows(model[0].weight)
    assert moments.of(model[1].weight).shape == (2, 3)


def test_each_step_starts_anew():
    torch.manual_seed(0)
    model, inputs = nn.Linear(3, 2).double(), torch.randn(4, 3).double()
    moments = MicroBatchSecondMoments(model, 2)
    found = []
    for _ in range(2):
        model.zero_grad()
        for part in inputs.chunk(2):
            (mean_loss(model, part) / 2).backward()
        found.append(moments.of(model.weight))
        moments.of(model.bias)
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("kind", [ExactSecondMoments, MicroBatchSecondMoments])
def test_gradients_that_are_thrown_away_leave_nothing(kind, set_to_none):
    """After a backward that failed within ``no_sync``, say."""
    torch.manual_seed(0)
    model, inputs = nn.Linear(3, 2).double(), torch.randn(4, 3).double()
    moments = kind(model) if kind is ExactSecondMoments else kind(model, 2)
    found = []
    for _ in range(2):
        for part in inputs.chunk(2):
            (mean_loss(model, part) / 2).backward()
        found.append([moments.of(parameter) for parameter in model.parameters()])
        mean_loss(model, inputs).backward()
        model.zero_grad(set_to_none)
        if not set_to_none:
            moments.reset()
    assert all(map(torch.equal, *found))


def test_layers_that_exact_refuses_have_an_estimate():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    for estimate in micro_batches(model, torch.randn(8, 3), 2):
        assert (estimate >= 0).all() and estimate.isfinite().all()


@given(m=st.sampled_from([2, 3, 6]), seed=seeds)
@quick
def test_with_batch_norm_the_estimate_is_that_of_its_micro_batches(m, seed):
    """A * sum_j (G_j - mean)^2 + r^2 / B, each G_j by a backward of its own."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    inputs = torch.randn(12, 3).double()
    losses = [mean_loss(model, part) / m for part in inputs.chunk(m)]
    parameters = list(model.parameters())
    by_part = [torch.autograd.grad(loss, parameters) for loss in losses]
    estimates = micro_batches(model, inputs, m)
    for estimate, own in zip(estimates, zip(*by_part, strict=True), strict=True):
        gradients = torch.stack(own)
        spread = (gradients - gradients.mean(0)).square().sum(0)
        expected = spread * (1 - 1 / 12) / (1 - 1 / m)
        expected += gradients.sum(0).square() / 12
        torch.testing.assert_close(estimate, expected)


@given(parts=sizes, size=sizes)
@quick
def test_micro_batches_are_the_batch_in_order(parts, size):
    samples = parts * size
    tokens = torch.arange(2 * samples).view(samples, 2)
    batch = {"ids": tokens, "rest": [tokens[:, 0], (torch.tensor(3.0), "kept")]}
    pieces = cut(batch, parts)
    assert len(pieces) == parts
    assert torch.equal(torch.cat([piece["ids"] for piece in pieces]), tokens)
    assert torch.equal(torch.cat([p["rest"][0] for p in pieces]), tokens[:, 0])
    assert all(piece["rest"][1] == (torch.tensor(3.0), "kept") for piece in pieces)


@dataclass
class Texts:
    """A batch whose tensors have names."""

    ids: torch.Tensor
    name: str = "kept"


class Rows(NamedTuple):
    """Another one."""

    ids: torch.Tensor
    name: str = "kept"


@pytest.mark.parametrize("kind", [Texts, Rows])
def test_a_batch_with_named_fields_is_cut_and_keeps_them(kind):
    pieces = cut(kind(torch.arange(4)), 2)
    assert [type(piece) for piece in pieces] == [kind, kind]
    assert [piece.ids.tolist() for piece in pieces] == [[0, 1], [2, 3]]
    assert [piece.name for piece in pieces] == ["kept", "kept"]


def test_a_batch_that_cannot_be_cut_is_refused():
    with pytest.raises(MismatchError, match="6 samples cannot be cut into 4"):
        cut(torch.zeros(6, 2), 4)
    with pytest.raises(MismatchError, match=r"1 sample cannot .* leave out a last"):
        cut(torch.zeros(1, 2), 4)
    with pytest.raises(MismatchError, match=r"4 samples holds .* \[3, 4\]"):
        cut((torch.zeros(4, 2), torch.zeros(3, 4)), 2)


def test_a_survey_finds_what_training_would():
    """What construction, forward, backward and the end of it would refuse."""
    x = torch.randn(4, 3)
    normed = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    twice = Named(lambda m, x: m.fc(m.fc(x)))
    lstm = Named(lambda m, x: m.lstm(x[:, None])[0])
    past = Named(lambda m, x: linear(x, m.fc.weight))
    for model, objection in (
        (normed, "layer 1 (batch normalisation) mixes samples"),
        (twice, "layer fc (Linear) is used more than once in a backward pass"),
        (lstm, "layer lstm (LSTM) takes or returns more than positional tensors"),
        (past, "parameter fc.weight is not used through its own layer's forward"),
        (nn.Linear(3, 2), None),
    ):
        plain = copy.deepcopy(model)
        found = survey(model, mean_loss, x)
        assert found.objection == objection
        assert found.micro_batches == 2
        mean_loss(plain, x).backward()
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None)
            assert ours.grad is None or torch.equal(ours.grad, theirs.grad)
        mean_loss(model, x).backward()  # nobody watches any more


def test_a_survey_leaves_a_compiled_model_alone():
    model = nn.Linear(3, 2)
    model.compile(backend="eager")
    survey = Survey(model)
    assert survey.objection == "the model is compiled"
    assert not model._forward_hooks


def test_ranks_take_what_all_of_them_can_have():
    exact, cannot = SecondMoments(micro_batches=4), SecondMoments(objection="a layer")
    assert common([exact, exact]) == exact
    assert common([exact, cannot]) == cannot


def test_a_missing_micro_batch_is_named():
    model = nn.Linear(3, 2)
    moments = MicroBatchSecondMoments(model, 3)
    mean_loss(model, torch.randn(2, 3)).backward()
    with pytest.raises(
        MismatchError, match="weight saw 1 backward passes instead of 3"
    ):
        moments.of(model.weight)


def test_one_micro_batch_shows_no_variance():
    with pytest.raises(MismatchError, match="at least 2"):
        MicroBatchSecondMoments(nn.Linear(1, 1), 1)


def test_inputs_may_be_nested():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(5, 1)

        def forward(self, scale, *, batch):
            return self.fc(one_hot(batch["tokens"][0], 5).float()) * scale

    model = Nested()
    moments = ExactSecondMoments(model)
    output = model(torch.tensor(2.0), batch={"tokens": (torch.tensor([1, 4, 4]),)})
    output.mean().backward()
    expected = torch.tensor([[0.0, 1.0, 0.0, 0.0, 2.0]]) * (2 / 3) ** 2
    torch.testing.assert_close(moments.of(model.fc.weight), expected)


@pytest.mark.parametrize(
    "hooked", [ExactSecondMoments, lambda model: MicroBatchSecondMoments(model, 2)]
)
def test_a_copy_of_the_model_is_an_ordinary_one(hooked):
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    moments = hooked(model)
    model(torch.randn(6, 4)).sum().backward()
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        copied(torch.randn(2, 5, 4)).sum().backward()
        copied[0](torch.randn(4)).sum().backward()
    moments.remove()
