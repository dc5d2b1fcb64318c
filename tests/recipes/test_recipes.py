"""Each recipe of CONTRIBUTING.md, followed for real: all of the system knows it then.

A copy of the package follows all of them; then the commands and the tests that run over
the registries are asked of what was added.
"""

import pytest

from comm_plan.plans import RunRecord
from comm_plan.tests.support.recipes import Copy

pytestmark = pytest.mark.slow

RECIPES = {
    "A compressor": ["plans/compression/registry.py"],
    "A collective": ["collectives/registry.py", "plans/compression/dense.py"],
    "A backend": ["transports/backends.py"],
    "A solver": ["planner/solvers.py"],
    "A workload": ["workloads/registry.py"],
    "A field of a document": ["plans/profile.py"],
}
"""Which files there were before each recipe touches."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy that has followed every recipe."""
    copy = Copy(tmp_path_factory.mktemp("recipes"))
    there = {path.relative_to(copy.folder) for path in copy.folder.rglob("*")}
    for title, existing in RECIPES.items():
        copy.follow(title)
        touched = copy.changed[title]
        assert [name for name in touched if _known(name, there)] == existing
    copy.python("-m", "comm_plan.plans.schemas")
    copy.python("-m", "comm_plan.plans.compression.table")
    return copy


def _known(name, there):
    return any(path.as_posix() == name for path in there)


@pytest.fixture(scope="module")
def measured(copy, tmp_path_factory):
    """A folder with a profile and a network that know what was added."""
    folder = tmp_path_factory.mktemp("measured")
    copy.verb(
        *("benchmark-network", "--local-ranks", 2, "--max-bytes", 4096, "--budget", 2),
        *("--collectives", "allreduce,allgather,star"),
        cwd=folder,
    )
    copy.verb(
        *("profile", "perceptron", "--iterations", 20, "--compressors", "gathered"),
        cwd=folder,
    )
    return folder


def run_own_tests(copy, *words):
    """Run some of the copy's own tests; pytest fails where none is found."""
    return copy.python("-m", "pytest", "-q", "-p", "no:cacheprovider", *words)


def test_schemas_and_pages_are_written_anew(copy):
    assert "gathered" in (copy.folder / "docs" / "compression.md").read_text()
    schema = (copy.folder / "plans" / "schemas" / "profile.schema.json").read_text()
    assert '"remark"' in schema


def test_the_tests_over_the_registries_cover_what_was_added(copy):
    ran = copy.python(
        *("-m", "pytest", "-v", "-p", "no:cacheprovider"),
        *("-k", "gathered or pairs or [star or [dense-star or test_documents"),
        *("-m", "not slow"),
        *("tests/compressors/test_registry.py", "tests/planner/test_solvers.py"),
        *("tests/commbench/test_sweep.py", "tests/plans"),
    )
    for case in (
        "the_message_is_as_long_as_the_spec_says[gathered]",
        "every_compressor_can_be_asked_of_every_merging_solver[pairs-dense-star]",
        "[star]",
    ):
        assert case in ran


def test_help_lists_what_was_added(copy):
    wide = {"COLUMNS": "400"}
    text = "".join(copy.python("-c", _help(verb, wide)) for verb in ("solve", "train"))
    for name in ("gathered", "dense-star", "pairs", "alone", "star"):
        assert name in text


def _help(verb, environment):
    return (
        f"import os; os.environ.update({environment!r})\n"
        f"from comm_plan.cli import main; main([{verb!r}, '--help'])"
    )


@pytest.mark.parametrize(
    "how",
    [("--compressor", "gathered"), ("--solver", "pairs", "--compressor", "dense-star")],
    ids=["gathered", "pairs by dense-star"],
)
def test_what_was_added_is_planned_and_trained(copy, measured, how):
    copy.verb("solve", "profile.json", "network.json", *how, cwd=measured)
    trained = ("train", "perceptron", "--plan", "plan.json", "--steps", 3)
    copy.verb(*trained, "--local-ranks", 2, cwd=measured)
    assert RunRecord.load(measured / "run.json").steps == 3


def test_a_run_joins_through_the_new_backend(copy, measured):
    solved = ("solve", "profile.json", "network.json", "--world-size", 1)
    copy.verb(*solved, "-o", "alone.json", cwd=measured)
    trained = ("train", "perceptron", "--plan", "alone.json", "--steps", 2)
    copy.verb(*trained, "--backend", "alone", "-o", "alone-run.json", cwd=measured)
    assert RunRecord.load(measured / "alone-run.json").world_size == 1
