"""The documents are a contract: what they accept, refuse and write."""

import json
import re

import pytest

from comm_plan.errors import DocumentError, OutputError
from comm_plan.plans import DOCUMENTS, Network, Plan, Profile, RunRecord, fingerprint
from comm_plan.plans.files import write_atomically
from comm_plan.plans.schemas import schema_path, schema_text
from comm_plan.tests.support.documents import profile_of, run, tensor

PROFILE = {
    "schema": "comm-plan/profile",
    "version": 1,
    "model": {"name": "two", "fingerprint": "sha256:0", "parameters": 12},
    "device": {"type": "cpu", "name": "x"},
    "batch_size": 32,
    "forward_s": 0.1,
    "backward_s": 0.3,
    "update_s": 0.01,
    "tensors": [
        {
            "name": "b",
            "layer": "l",
            "shape": [4],
            "numel": 4,
            "dtype": "float32",
            "ready_s": 0.1,
        },
        {
            "name": "a",
            "layer": "l",
            "shape": [2, 4],
            "numel": 8,
            "dtype": "bfloat16",
            "ready_s": 0.3,
        },
    ],
}
NETWORK = {
    "schema": "comm-plan/network",
    "version": 1,
    "backend": "gloo",
    "world_size": 4,
    "collectives": {
        "allreduce": {
            "fit": {
                "segments": [
                    {"from_nbytes": 0, "alpha_s": 1e-3, "beta_s_per_byte": 1e-8},
                    {"from_nbytes": 1000, "alpha_s": 2e-3, "beta_s_per_byte": 1e-9},
                ]
            }
        }
    },
}
PLAN = {
    "schema": "comm-plan/plan",
    "version": 1,
    "solver": "hand",
    "model": {"name": "two", "fingerprint": "sha256:0"},
    "world_size": 4,
    "backend": "gloo",
    "buckets": [{"tensors": ["b"]}, {"tensors": ["a"]}],
}


def changed(document, path, value):
    copy = json.loads(json.dumps(document))
    place = copy
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(copy)


def test_a_seed_is_not_negative():
    """Random numbers cannot be drawn from it."""
    plan = Plan.from_json(json.dumps(PLAN))
    record = json.loads(run(plan).to_json()) | {"seed": -1}
    with pytest.raises(DocumentError, match="seed = -1"):
        RunRecord.from_json(json.dumps(record))


def test_hand_written_documents_are_valid():
    assert Profile.from_json(json.dumps(PROFILE)).nbytes == 4 * 4 + 8 * 2
    assert Network.from_json(json.dumps(NETWORK)).world_size == 4
    assert Plan.from_json(json.dumps(PLAN)).is_dense


@pytest.mark.parametrize(
    ("document", "text"), [(Profile, PROFILE), (Network, NETWORK), (Plan, PLAN)]
)
def test_documents_survive_a_round_trip(tmp_path, document, text):
    first = document.from_json(json.dumps(text))
    first.save(tmp_path / "file.json")
    second = document.load(tmp_path / "file.json")
    assert second == first
    assert second.sha256 == first.sha256
    assert list(json.loads(first.to_json()))[:2] == ["schema", "version"]


def test_a_document_is_the_same_whether_defaults_are_written_or_not():
    short = Plan.from_json(json.dumps(PLAN))
    written = json.loads(short.to_json())
    assert written != PLAN
    assert Plan.from_json(json.dumps(written)).sha256 == short.sha256
    other = Plan.from_json(json.dumps({**PLAN, "solver": "another"}))
    assert other.sha256 != short.sha256


@pytest.mark.parametrize(
    ("document", "text", "message"),
    [
        (Profile, "{", "not JSON"),
        (Profile, '{"schema": "comm-pl', "not JSON: it ends in line 1, unfinished"),
        (Profile, "[]", "JSON object"),
        (Profile, '{"schema": "comm-plan/plan"}', "comm-plan/profile"),
        (Profile, changed(PROFILE, ["version"], 2), "version 2"),
        (Profile, changed(PROFILE, ["version"], None), "has no version"),
        (Profile, changed(PROFILE, ["colour"], "red"), "colour"),
        (Profile, changed(PROFILE, ["forward_s"], -1), "forward_s = -1"),
        (Profile, changed(PROFILE, ["forward_s"], float("nan")), "NaN"),
        (Profile, changed(PROFILE, ["forward_s"], float("inf")), "Infinity"),
        (Profile, changed(PROFILE, ["forward_s"], None), "forward_s"),
        (Profile, changed(PROFILE, ["tensors"], []), "tensors: must not be empty"),
        (Profile, changed(PROFILE, ["tensors", 0, "ready_s"], 0.4), "not in ready"),
        (Profile, changed(PROFILE, ["tensors", 0, "name"], "a"), "a is listed twice"),
        (Profile, changed(PROFILE, ["tensors", 0, "numel"], 5), "numel 5"),
        (Profile, changed(PROFILE, ["tensors", 0, "dtype"], "int4"), "int4"),
        (Network, changed(NETWORK, ["collectives", "x"], {"fit": None}), "neither"),
        (
            Network,
            changed(
                NETWORK,
                ["collectives", "allreduce", "fit", "segments", 1, "from_nbytes"],
                0,
            ),
            "segments start at",
        ),
        (Plan, changed(PLAN, ["buckets"], []), "buckets"),
        (Plan, changed(PLAN, ["buckets", 0, "tensors"], ["a"]), "a is in the plan"),
        (Plan, changed(PLAN, ["buckets", 0, "collective"], "gtopk"), "gtopk"),
        (
            Plan,
            changed(PLAN, ["buckets", 0, "compressor"], {"kind": "zip"}),
            "zip",
        ),
        (
            Plan,
            changed(PLAN, ["buckets", 0, "compressor"], {"kind": "topk", "density": 0}),
            "density",
        ),
        (
            Plan,
            changed(
                PLAN, ["buckets", 0, "compressor"], {"kind": "topk", "density": 1.5}
            ),
            "density",
        ),
    ],
)
def test_bad_documents_are_refused_in_one_line_naming_the_fault(
    document, text, message
):
    with pytest.raises(DocumentError) as caught:
        document.from_json(text, source="the-file.json")
    line = str(caught.value)
    assert "the-file.json" in line
    assert message in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["batch_size"], 10**400, "batch_size"),
        (["batch_size"], 2**31 + 1, "must be at most 2147483648"),
        (["forward_s"], 1e9, "must be at most 31622400"),
        (["model", "parameters"], 2**53 + 1, "model.parameters"),
        (["model", "name"], "x" * 1001, "at most 1000 characters"),
        (["model", "name"], "a\x1b[31m", "control character"),
        (["tensors", 0, "shape"], [2**52, 2**52], "tensors.0"),
        (["tensors", 0, "shape"], [1] * 65, "must have at most 64 entries"),
        (["contention"], {"world_size": 2**20 + 1}, "contention.world_size"),
        (["environment"], [[[[[[[[]]]]]]]], "environment"),
        (["waiting_s"], json.loads("[" * 70 + "]" * 70), "nested deeper than 64"),
    ],
)
def test_what_is_beyond_a_bound_is_refused_in_a_short_line(path, value, message):
    with pytest.raises(DocumentError) as caught:
        Profile.from_json(changed(PROFILE, path, value), source="the-file.json")
    line = str(caught.value)
    assert message in line
    assert len(line) <= 500
    assert line.isprintable()


@pytest.mark.parametrize(
    ("number", "message"),
    [("9" * 5000, "beyond 2^53"), ("[" * 100_000, "nested deeper than 64")],
)
def test_what_python_cannot_parse_is_refused(number, message):
    text = json.dumps(PROFILE).replace("0.01", number)
    with pytest.raises(DocumentError, match=re.escape(message)):
        Profile.from_json(text)


def test_all_gradients_together_are_bounded():
    half = {**PROFILE["tensors"][0], "shape": [2**50], "numel": 2**50}
    tensors = [half, {**half, "name": "other"}, {**half, "name": "third"}]
    with pytest.raises(DocumentError, match="above 2\\^53"):
        Profile.from_json(changed(PROFILE, ["tensors"], tensors))


def test_what_is_left_of_rounding_is_no_time():
    text = changed(PROFILE, ["forward_s"], 5e-324)
    assert Profile.from_json(text).forward_s == 0


def test_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(DocumentError, match="no such file"):
        Plan.load(tmp_path / "absent.json")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    target = tmp_path / "folder-in-the-way"
    target.mkdir()
    (target / "kept").write_text("old")
    with pytest.raises(OutputError):
        write_atomically(target, "new")
    assert (target / "kept").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_ternary_sums_never_leave_int8():
    bucket = {"compressor": {"kind": "terngrad"}, "collective": "allreduce"}
    plan = {**PLAN, "buckets": [{"tensors": ["a"], **bucket}], "world_size": 128}
    with pytest.raises(DocumentError, match="127"):
        Plan.from_json(json.dumps(plan))
    assert Plan.from_json(json.dumps({**plan, "world_size": 127}))


def test_the_fingerprint_ignores_order_only():
    tensors = [("a", (2, 3), "float32"), ("b", (4,), "float32")]
    assert fingerprint(tensors) == fingerprint(reversed(tensors))
    assert fingerprint(tensors) != fingerprint([("a", (3, 2), "float32"), tensors[1]])
    assert fingerprint(tensors) != fingerprint([("a", (2, 3), "float16"), tensors[1]])


def test_a_fit_uses_the_segment_of_the_size():
    fit = Network.from_json(json.dumps(NETWORK)).collectives["allreduce"].fit
    assert fit.seconds(999) == pytest.approx(1e-3 + 999e-8)
    assert fit.seconds(1000) == pytest.approx(2e-3 + 1000e-9)


@pytest.mark.parametrize(
    ("told", "device", "threads"),
    [
        ("16", "cpu", 16),
        ("16", "cuda", None),
        (None, "cpu", None),
        ("0", "cpu", None),
        ("many", "cpu", None),
        ("9" * 9999, "cpu", None),
    ],
)
def test_threads_are_told_of_cpus_where_they_can_be_believed(told, device, threads):
    environment = {} if told is None else {"threads": told}
    where = {"type": device, "name": "test"}
    profile = profile_of([tensor("a", (2,))], environment=environment, device=where)
    assert profile.threads == threads


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_json_schemas_are_current(document):
    assert schema_path(document).read_text() == schema_text(document), (
        "run: make tables"
    )
