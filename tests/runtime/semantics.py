"""What a training loop may do, and what DDP and comm-plan then do.

Each line is shown by a test: scenarios by ``ddp_oracle.py``, which runs them under both
and compares; differences by tests of their own. Writes ``docs/semantics.md``::

    python -m comm_plan.tests.runtime.semantics
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "semantics.md"

SAME = {
    "plain": "A step: `zero_grad`, forward, backward, `optimizer.step`",
    "set_to_none=False": "`zero_grad(set_to_none=False)`",
    "no_sync accumulation": "Accumulation in `no_sync()`",
    "two backwards": "Two backwards before a step, both averaged",
    "evaluation between": "An evaluation between two steps",
    "tied weights": "Tied weights",
    "unused parameters": "Parameters that some ranks do not use "
    "(`find_unused_parameters`)",
    "no parameter used on one rank": "A rank whose loss uses no parameter (unless the "
    "loop clips or unscales before the step)",
    "checkpoint": "Activation checkpointing",
    "re-entrant checkpoint": "Activation checkpointing, re-entrant",
    "mixed dtypes": "Parameters of several dtypes",
    "batch norm, channels last": "Batch norm; channels-last weights",
    "dictionary output": "Outputs in dictionaries and lists",
    "unused after no_sync": "A gradient from `no_sync()` of a parameter that the step "
    "itself does not use",
    "unused after no_sync but on rank 1": "The same where some ranks do use it",
    "two heads, a backward each": "Losses called one by one, each for some parameters",
    "accumulated, then a backward each": "The same after an accumulation in "
    "`no_sync()`",
    "another head each time": "Another head in each backward of a step",
    "other heads on other ranks": "The same, of which ranks use different ones",
    "forward before the update": "A forward between backward and the update",
    "forward before the update, unused": "The same with `find_unused_parameters`",
    "gradient penalty": "`torch.autograd.grad` for a gradient penalty",
    "adversarial examples": "`torch.autograd.grad` for an adversarial example",
    "frozen for another model": "Parameters that are frozen for a while, as in a GAN",
    "in eval mode": "A model that trains in `eval()` mode, as with frozen batch norm",
    "two forwards, batch norm": "Two forwards before one backward, with batch norm",
    "sparse gradients": "Sparse gradients (`nn.Embedding(sparse=True)`), of plans that "
    "know of them",
    "sparse gradients from no_sync": "The same, accumulated",
    "sparse gradients under SparseAdam": "The same under `SparseAdam`",
    "complex parameters": "Complex parameters",
    "complex parameters from no_sync": "The same, accumulated",
    "uneven batches": "Uneven numbers of batches (`Join`)",
    "the switch of DDP": "`require_backward_grad_sync`, set by a framework",
    "a group of its own": "A model of some of the ranks (`process_group`)",
    "the time-out of the group": "The process group's time-out",
    "DDP by a plan": "DDP's own buckets under `ddp_options`",
    "saved by torch": "State saved and loaded by `torch.distributed.checkpoint`",
    "wrapped in DDP too": "DDP around a model that has a plan: refused by name",
}
"""Scenario of the oracle -> what it is. The parameters that result are DDP's."""


@dataclass(frozen=True)
class Difference:
    """Where the two differ.

    Attributes:
        what: happens.
        ddp: what DDP does.
        ours: what comm-plan does.
        test: ``file::name`` in this folder.
    """

    what: str
    ddp: str
    ours: str
    test: str


DIFFERENCES = (
    Difference(
        "A parameter without gradient, not announced",
        "error in the next forward, with indices",
        "error when the next step begins, with names",
        "test_engine.py::test_a_missing_gradient_is_an_error_that_names_the_parameter",
    ),
    Difference(
        "Inf or NaN on one rank",
        "NaN on all ranks",
        "that, a step skipped by all, or an error on all (`on_nonfinite`)",
        "test_engine.py::test_a_nan_of_a_dense_bucket_skips_the_step_too",
    ),
    Difference(
        "A backward that fails on one rank, and the loop goes on",
        "ranks wait, or mix up their steps",
        "all ranks skip the step; under dense plans with `on_nonfinite='skip'` or "
        "`find_unused_parameters`, else an error",
        "test_engine.py::test_a_step_that_failed_on_one_rank_is_skipped_by_all",
    ),
    Difference(
        "A rank dies, stops or raises",
        "an error without its number, or a wait until the time-out",
        "all others end within seconds and name it",
        "test_users_loop.py::test_every_rank_names_the_one_that_went_wrong",
    ),
    Difference(
        "Wrapped a second time, as by a notebook cell that runs again",
        "both average",
        "the second takes the place of the first",
        "test_engine.py::test_a_second_engine_takes_the_place_of_the_first",
    ),
    Difference(
        "`copy.deepcopy`, pickle, an average of weights",
        "`model.module` must be taken",
        "an ordinary model",
        "test_hooks.py::test_a_copy_is_an_ordinary_model",
    ),
    Difference(
        "An optimizer that steps inside backward",
        "updates by gradients that are not averaged",
        "refused by name; `engine.on_reduced` is where it can",
        "test_hooks.py::test_an_optimizer_inside_backward_is_refused_by_name",
    ),
    Difference(
        "A parameter that is unfrozen, replaced or added after wrapping",
        "updates by gradients that are not averaged",
        "refused by name when an optimizer takes it",
        "test_engine.py::test_a_parameter_that_is_trained_only_later_is_refused_by_name",
    ),
    Difference(
        "Only the forward, or only the backward, in `no_sync()`",
        "the forward counts",
        "the backward counts",
        "test_engine.py::test_no_sync_counts_where_backward_runs",
    ),
    Difference(
        "A second backward over the same graph (`retain_graph=True`)",
        "its gradients stay the rank's own",
        "averaged, as after a forward of its own",
        "test_accumulation.py::test_a_second_backward_over_a_graph_is_averaged_too",
    ),
    Difference(
        "The scale of the loss grows (`GradScaler`)",
        "nothing is left over that it would concern",
        "residuals follow (`grad_scaler`)",
        "test_engine.py::test_no_gradient_is_lost_when_the_scale_of_the_loss_grows",
    ),
    Difference(
        "Sharded parameters (FSDP2)",
        "not meant for them",
        "refused by name",
        "test_engine.py::test_a_sharded_model_is_refused_by_name",
    ),
    Difference(
        "`torch.compile` of the whole model",
        "DDP's optimizer splits it at its buckets",
        "right, but nothing overlaps: `compile_blocks`",
        "test_compiled.py::test_a_bucket_is_ready_when_its_block_is",
    ),
    Difference(
        "A compiled backward (compiled autograd)",
        "its hooks are traced",
        "refused by name",
        "test_compiled.py::test_a_compiled_backward_is_refused_by_name",
    ),
    Difference(
        "A model that is dropped",
        "its process group keeps threads",
        "engine, threads and buckets go with it",
        "test_hooks.py::test_an_engine_that_nobody_closes_goes_with_its_model",
    ),
    Difference(
        "Ranks with different models",
        "error with the shapes",
        "error that names the first difference",
        "test_engine.py::test_ranks_with_different_models_learn_the_first_difference",
    ),
    Difference(
        "A sparse gradient that only some ranks have",
        "error, and the others wait",
        "averaged (`find_unused_parameters`)",
        "test_engine.py::test_rows_that_only_some_ranks_have_are_averaged",
    ),
    Difference(
        "A sparse gradient of which the plan does not know",
        "averaged, once the layer is built so",
        "refused by name; a plan from a profile knows",
        "test_engine.py::test_a_sparse_gradient_outside_of_the_plan_is_refused_by_name",
    ),
)


def page() -> str:
    """Return the page of the documentation."""
    same = "\n".join(f"- {what}" for what in SAME.values())
    rows = "\n".join(
        f"| {each.what} | {each.ddp} | {each.ours} | `{each.test.partition('::')[0]}` |"
        for each in DIFFERENCES
    )
    return f"""# DDP and comm-plan

This page is made from `tests/runtime/semantics.py`; tests run every line of it.

## The same

With a dense plan these give the parameters that PyTorch DDP gives: on 2 ranks bit for
bit, on 3 to rounding (a sum of three depends on the order). Both are run side by side
from the same seeds (`tests/runtime/ddp_oracle.py`).

{same}

With compressed plans no gradient is lost by any sequence of them
(`tests/runtime/test_conservation.py`).

## Different

| what happens | DDP | comm-plan | shown by |
|---|---|---|---|
{rows}
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
