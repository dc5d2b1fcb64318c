"""Whatever a file holds: every verb that reads it succeeds or says in one line why not.

``--mutations N`` draws so many in all, others than those of every day, and yet others
with another ``--mutations-seed``: long series can be run in parts.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from comm_plan.planner.solvers import SOLVERS
from comm_plan.plans import DOCUMENTS, Network, Plan, Profile, RunRecord, Tuning
from comm_plan.tests.support import corpus
from comm_plan.tests.support.attempts import attempt, check
from comm_plan.tests.support.hostile import damaged, from_schema, mutated

EVERY_DAY = 100
"""Examples of each test in a run without ``--mutations``."""

BATCH = 500
"""Examples that Hypothesis draws at once: it remembers all of them."""

SCHEMAS = {document: document.json_schema() for document in DOCUMENTS}
RIGHT = {
    document: json.loads(text.to_json()) for document, text in corpus.DOCUMENTS.items()
}


def texts(document):
    """Return what draws files that might be taken for a ``document``."""
    schema, right = SCHEMAS[document], RIGHT[document]
    return st.one_of(
        mutated(right, schema).map(str.encode),
        mutated(right, schema).map(str.encode),
        from_schema(schema).map(lambda drawn: json.dumps(drawn).encode()),
        damaged(json.dumps(right)),
    )


@pytest.fixture
def fuzz(request, tmp_path):
    """Return a function that hands so many drawn values to a check."""
    asked = request.config.getoption("--mutations")
    series = request.config.getoption("--mutations-seed")
    tests = sum(item.path == request.node.path for item in request.session.items)
    count = -(-asked // tests) if asked else EVERY_DAY

    def run(strategy, attack):
        for batch in range(-(-count // BATCH)):
            attacked = given(strategy)(attack)
            if asked:
                attacked = seed(f"{series}.{batch}")(attacked)
            settings(
                max_examples=min(BATCH, count),
                derandomize=not asked,
                database=None,
                deadline=None,
                phases=(Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
            )(attacked)()

    return run


@pytest.fixture
def folder(tmp_path):
    for document, right in corpus.DOCUMENTS.items():
        right.save(tmp_path / f"{document.__name__.lower()}.json")
    return tmp_path


def file_of(folder: Path, document) -> Path:
    return folder / f"{document.__name__.lower()}.json"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_show(fuzz, folder, document):
    def attack(raw):
        file_of(folder, document).write_bytes(raw)
        check(attempt("show", file_of(folder, document)))

    fuzz(texts(document), attack)


@pytest.mark.parametrize("document", [Profile, Network])
def test_solve(fuzz, folder, document):
    target = folder / "out.json"

    def attack(drawn):
        raw, solver, ranks, compressor = drawn
        file_of(folder, document).write_bytes(raw)
        words = ["solve", file_of(folder, Profile), file_of(folder, Network)]
        words += ["-o", target, "--solver", solver]
        words += ["--world-size", ranks] if ranks else []
        words += ["--compressor", compressor] if compressor else []
        target.unlink(missing_ok=True)
        if check(attempt(*words)):
            Plan.load(target)
        else:
            assert not target.exists()

    fuzz(
        st.tuples(
            texts(document),
            st.sampled_from(list(SOLVERS)),
            st.sampled_from((None, None, 1, 2, 7, 2**20)),
            st.sampled_from((None, None, "topk", "fp16")),
        ),
        attack,
    )


@pytest.mark.parametrize("document", [Profile, Network])
def test_simulate(fuzz, folder, document):
    def attack(raw):
        file_of(folder, document).write_bytes(raw)
        given = file_of(folder, Profile), file_of(folder, Network)
        check(attempt("simulate", *given, "--world-sizes", "1,2,8,1048576"))

    fuzz(texts(document), attack)


@pytest.mark.parametrize("document", [Profile, Network, Plan, RunRecord, Tuning])
def test_report(fuzz, folder, document):
    def attack(drawn):
        raw, output = drawn
        file_of(folder, document).write_bytes(raw)
        words = ["-o", folder / "out" / output] if output else []
        check(attempt("report", folder, *words))

    (folder / "out").mkdir()
    outputs = st.sampled_from((None, "r.html", "r.html", "trace.json"))
    fuzz(st.tuples(texts(document), outputs), attack)


@pytest.mark.parametrize("text", corpus.IMPORTED)
def test_import(fuzz, folder, text):
    def attack(drawn):
        raw, ranks = drawn
        (folder / "log.txt").write_bytes(raw)
        words = ["--import", folder / "log.txt", "-o", folder / "network.json"]
        words += ["--world-size", ranks] if ranks else []
        if check(attempt("benchmark-network", *words)):
            Network.load(folder / "network.json")

    ranks = st.sampled_from((None, 2, 4, 2**20))
    fuzz(st.tuples(damaged(corpus.IMPORTED[text]), ranks), attack)
