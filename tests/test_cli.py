"""What the command prints and how it refuses; where it matters, as real processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.text import Text
from typer.main import get_command

from comm_plan import __version__, cli, demo
from comm_plan.errors import InputError
from comm_plan.planner import Settings, make_problem, solve
from comm_plan.planner.problem import HOROVOD_CAPS
from comm_plan.plans import (
    CompressionCost,
    EmulatedLink,
    IterationTimes,
    Network,
    Plan,
    Profile,
    RunRecord,
    Tuning,
    fingerprint,
)
from comm_plan.plans.document import YEAR_S
from comm_plan.plans.run import STOCK_DDP
from comm_plan.runtime.learning_rate import LearningRate
from comm_plan.tests.support import forked
from comm_plan.tests.support.command import Ended
from comm_plan.tests.support.documents import (
    fit,
    network,
    profile_of,
    samples,
    tensor,
)
from comm_plan.transports.launch import rank_variables

PROFILE = profile_of(
    [tensor("b", (4,), 0.001), tensor("a", (2, 4), 0.003)],
    batch_size=32,
    forward_s=0.001,
    update_s=0.001,
)


def process(*arguments, **options):
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "comm_plan.cli", *map(str, arguments)],
        capture_output=True, text=True, timeout=250, check=False, **options,
    )  # fmt: skip


def profile(**changes):
    return {**json.loads(PROFILE.to_json()), **changes}


def plan(**changes):
    return {
        "schema": "comm-plan/plan",
        "version": 1,
        "solver": "hand",
        "model": {"name": "two", "fingerprint": PROFILE.model.fingerprint},
        "world_size": 1,
        "backend": "gloo",
        "buckets": [{"tensors": ["b"]}, {"tensors": ["a"]}],
        **changes,
    }


def write_documents(folder):
    for name, document in (
        ("profile", profile()),
        ("network", json.loads(network(world_size=2).to_json())),
        ("plan", plan()),
    ):
        (folder / f"{name}.json").write_text(json.dumps(document))


@pytest.fixture
def folder(tmp_path):
    write_documents(tmp_path)
    return tmp_path


@pytest.fixture
def here(folder, monkeypatch):
    """The same folder, as the working directory."""
    monkeypatch.chdir(folder)
    return folder


def test_no_word_of_help_is_taken_for_a_style():
    for verb in get_command(cli.app).commands.values():
        for parameter in verb.params:
            help = getattr(parameter, "help", None) or ""
            assert Text.from_markup(help).plain == help, parameter.name


def test_help_is_quick_and_needs_no_torch():
    code = (
        "import sys\nfrom comm_plan import cli\nsys.argv = ['comm-plan', '--help']\n"
        "try:\n    cli.app()\nexcept SystemExit:\n    pass\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("words", [[], ["no-such-verb"], ["show", "absent.json"]])
def test_the_version_is_told_whatever_follows(command, words):
    told = command("--version", *words)
    assert (told.returncode, told.stdout) == (0, f"comm-plan {__version__}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("no-such-verb", "No such command 'no-such-verb': comm-plan --help lists"),
        ("show", "Missing argument 'FILE...': comm-plan show --help lists"),
        ("solve p.json n.json --world-size 100000000000000000000", "--world-size"),
        (f"train gan --plan p.json --batch-size {'9' * 400}", "--batch-size"),
        ("train gan --plan plan.json --seed -1", "--seed"),
        ("tune gan --seed -1", "--seed"),
        (
            "profile replay:profile.json -o p.json --emulate-link 1gbit",
            "one rank sends nothing",
        ),
        ("solve profile.json network.json --allow topk", "it is for --solver auto"),
        ("solve profile.json network.json --accuracy loss", "it is for --solver auto"),
        ("solve profile.json network.json --max-ratio 9", "solvers that choose ratios"),
        ("solve profile.json network.json --dense-layers a", "for plans that compress"),
        (
            "solve p.json n.json --compressor topk --set density=1 --set density=0.1",
            "--set density is given twice: leave one out",
        ),
        ("solve profile.json network.json --literal", "it is for --solver lags"),
        ("solve profile.json network.json --outer-lr 0.7", "it is for --local-steps"),
        (
            "solve profile.json network.json --local-steps 4 --outer-momentum 1",
            "--outer-momentum: momentum = 1.0: ",
        ),
        ("simulate profile.json network.json --solvers ,", "--solvers ',': give names"),
        ("simulate profile.json network.json --max-ratio 9", "that choose ratios"),
        ("simulate profile.json network.json --dense-layers a", "that compress"),
        ("benchmark-network --world-size 4", "--world-size: it is for --import"),
        ("benchmark-network --import a.txt --budget 9", "it is not for --import"),
        ("profile --from-csv a.csv --local-ranks 2", "profiles that are measured"),
        ("profile --from-csv a.csv --lr 1", "--lr: it is not for --from-csv"),
        ("tune gan --seeds 2", "--seeds: it is for --objective loss"),
        (
            "solve p.json n.json --solver lags --max-ratio 0",
            "greater than or equal to 1",
        ),
        (f"solve profile.json network.json --threshold {'x' * 4000}", "is no cap"),
        (
            "train gan --plan plan.json --checkpoint-every 3",
            "--checkpoint-every needs --checkpoint FOLDER",
        ),
        (
            "train gan --plan plan.json --diagnostics-every 3",
            "--diagnostics-every: it is for --diagnostics",
        ),
        (
            "train gan --plan plan.json --diagnostics a.jsonl -o ./a.jsonl",
            "a.jsonl: -o and --diagnostics: give each a file of its own",
        ),
    ],
)
def test_misuse_is_told_in_one_line(here, command, words, message):
    ended = command(*words.split())
    (line,) = ended.stderr.splitlines()
    assert len(line) <= 500
    assert message in ended.refusal(2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train gan --plan plan.json --lr-schedule often", "--lr-schedule 'often'"),
        ("train gan --plan plan.json --density-warmup 2.0", "--density-warmup '2.0'"),
        ("train gan --plan plan.json --density-warmup 1,b", "--density-warmup '1,b'"),
        ("train gan --plan plan.json --density-warmup 3", "plan has no densities"),
        ("train gan --plan plan.json --second-moments often", "micro-batches:N with"),
        ("train gan --plan plan.json --second-moments micro-batches:1", "N of 2 or"),
        ("compare gan plan.json --lr-schedule step:0", "--lr-schedule 'step:0'"),
        ("compare gan plan.json --density-warmup 0.5,0", "--density-warmup '0.5,0'"),
        ("benchmark-network --collectives ,", "--collectives ',': give names"),
        ("benchmark-network --collectives allreduce,lots", "collective 'lots'"),
        ("tune gan --allow topk,lots", "compressor 'lots'"),
        ("tune gan --objective loss --local-steps 4,x", "--local-steps '4,x'"),
        ("tune gan --objective loss --local-steps 4,1", "--local-steps: every = 1"),
        ("tune gan --profile network.json", "network.json"),
    ],
)
def test_faulty_words_are_refused_before_ranks_start(
    here, command, monkeypatch, words, message
):
    (here / "plan.json").write_text(json.dumps(plan(world_size=2)))
    monkeypatch.setattr("comm_plan.transports.launch.run_local", refuse([]))
    ended = command(*words.split(), "--local-ranks", "2")
    assert message in ended.refusal(2)


@pytest.mark.parametrize("verb", ["solve", "tune"])
@pytest.mark.parametrize("explained", ["none: stay dense; noise", "Upper bound on the"])
def test_options_without_a_default_are_explained(command, verb, explained):
    told = command(verb, "--help").stdout
    assert explained in " ".join(told.replace("\u2502", " ").split())


def test_names_are_printed_as_they_are(here, command):
    document = profile()
    document["model"]["name"] = "[/red] :smile: [bold]x"
    (here / "[red].json").write_text(json.dumps(document))
    shown = command("show", "[red].json")
    assert shown.returncode == 0, shown.stderr
    assert "[/red] :smile: [bold]x" in shown.stdout
    solved = command("solve", "[red].json", "network.json", "-o", "[b].json")
    assert "wrote [b].json" in solved.stderr


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (("solve", "profile.json", "network.json", "-o", "profile.json"), "profile"),
        (("solve", "profile.json", "network.json", "-o", "./network.json"), "network"),
        (("train", "digits", "--plan", "plan.json", "-o", "plan.json"), "plan"),
        (("report", "plan.json", "profile.json", "-o", "plan.json"), "plan"),
        (("report", ".", "-o", "profile.json"), "profile"),
        (("profile", "replay:profile.json"), "profile"),
        (("tune", "replay:profile.json", "-o", "."), "profile"),
        (("profile", "plan.json:make", "-o", "plan.json"), "plan"),
        (
            (
                "profile",
                "--from-model",
                "plan.json:make",
                "-o",
                "plan.json",
                "--flops-per-s",
                "1e9",
            ),
            "plan",
        ),
        (
            (
                "train",
                "replay:profile.json",
                "--plan",
                "plan.json",
                "-o",
                "profile.json",
            ),
            "profile",
        ),
        (("profile", "--from-csv", "plan.json", "-o", "plan.json"), "plan"),
        (("benchmark-network", "--import", "plan.json", "-o", "plan.json"), "plan"),
    ],
)
def test_what_is_read_is_not_overwritten(here, command, words, file):
    before = (here / f"{file}.json").read_text()
    assert "it is read too, and would be lost" in command.refused(*words)
    assert (here / f"{file}.json").read_text() == before


@pytest.mark.parametrize(
    "words", [("-o", "r.json", "a", "b"), ("a", "--steps", "3"), ("--steps", "3")]
)
@pytest.mark.parametrize("option", ["--adapt", "--elastic"])
def test_an_option_is_not_taken_for_a_file(here, command, option, words):
    said = command.refused("train", "digits", "--plan", "plan.json", option, *words)
    assert f"'{option}': two files are wanted, PROFILE NETWORK" in said
    assert " is an option" in said


def refuse(given):
    """Return what notes its arguments and ends the command."""

    def stop(*arguments):
        given.append(arguments)
        raise InputError("enough")

    return stop


def test_options_of_train_reach_the_training(here, command, monkeypatch):
    given = []
    monkeypatch.setattr("comm_plan.runtime.trainer.train", refuse(given))
    sparse = {"collective": "allgather", "compressor": {"kind": "topk", "density": 0.5}}
    buckets = [{"tensors": [name], **sparse} for name in ("b", "a")]
    (here / "plan.json").write_text(json.dumps(plan(buckets=buckets)))
    words = (
        "--optimizer sgd --lr 0.2 --momentum 0.8 --nesterov --weight-decay 0.01 "
        "--clip-norm 3 --seed 3 --lr-schedule step:2:0.5 --lr-warmup 1 "
        "--density-warmup 0.5,0.25 --on-nonfinite skip --find-unused-parameters "
        "--checkpoint kept --checkpoint-every 5 --epochs 4"
    )
    command.refused("train", REPLAYED, "--plan", "plan.json", *words.split())
    ((workload, _, _, options),) = given
    optimizer = workload.optimizer(workload.model.parameters())
    (group,) = optimizer.param_groups
    options_of_sgd = ("lr", "momentum", "nesterov", "weight_decay")
    assert [group[name] for name in options_of_sgd] == [0.2, 0.8, True, 0.01]
    assert len(optimizer._optimizer_step_pre_hooks) == 1  # clips
    assert (options.seed, options.on_nonfinite, options.epochs) == (3, "skip", 4)
    assert options.density_warmup == (0.5, 0.25)
    assert options.learning_rate == LearningRate.parse("step:2:0.5", 1.0)
    assert options.find_unused_parameters
    assert (str(options.checkpoint), options.checkpoint_every) == ("kept", 5)


def test_options_of_solve_reach_the_planner(here, command, monkeypatch):
    given = []
    monkeypatch.setattr("comm_plan.planner.make_problem", refuse(given))
    words = (
        "--compressor topk --set density=0.1 --dense-layers a,b --tolerance 0.2 "
        "--link-gbits 8 --algorithm binary_tree --momentum-correction "
        "--threshold horovod --world-size 9"
    )
    command.refused("solve", "profile.json", "network.json", *words.split())
    ((_, _, settings),) = given
    assert settings == Settings(
        world_size=9,
        compressor="topk",
        options={"density": "0.1"},
        dense_layers=("a", "b"),
        tolerance=0.2,
        link_bytes_per_s=1e9,
        algorithm="binary_tree",
        momentum_correction=True,
        caps_nbytes=HOROVOD_CAPS,
    )


def test_auto_is_told_what_compression_must_gain(here, command, monkeypatch):
    given = []
    monkeypatch.setattr("comm_plan.planner.make_problem", refuse(given))
    words = ["solve", "profile.json", "network.json", "--min-gain", "0.3"]
    command.refused(*words, "--solver", "auto")
    ((_, _, settings),) = given
    assert settings == Settings(min_gain=0.3)
    assert "--min-gain" in command.refused(*words)


def test_compressors_to_cost_are_called_as_methods(command, monkeypatch, here):
    given = []

    def stop(workload, transport, *, kinds, **_):
        given.append(kinds)
        raise InputError("enough")

    monkeypatch.setattr("comm_plan.profiler.measure", stop)
    names = "doublesqueeze,topk,gtopk,model-topk,powersgd,topk"
    command.refused("profile", REPLAYED, "-o", "p.json", "--compressors", names)
    assert given == [("dense", "double_squeeze", "topk", "model_topk", "powersgd")]


def test_an_interrupt_ends_with_130(here, command, monkeypatch):
    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("comm_plan.plans.load_document", interrupted)
    assert command("show", "plan.json").returncode == 130


@pytest.mark.parametrize(("name", "code"), [("plan.json", 0), ("none.json", 2)])
def test_a_closed_stdout_is_no_traceback(here, name, code):
    """As of ``comm-plan show plan.json >&-``."""
    words = [sys.executable, "-m", "comm_plan.cli", "show", name]
    run = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *words],
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert run.returncode == code, run.stderr
    assert len(run.stderr.splitlines()) == (code > 0)


def test_an_interrupt_while_the_command_loads_is_no_traceback(tmp_path):
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    run = subprocess.run(
        [sys.executable, "-m", "comm_plan", "--version"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")


def test_what_the_demo_calls_is_understood(tmp_path):
    (tmp_path / "tuning").mkdir()
    (tmp_path / "tuning" / "plan.json").write_text(json.dumps(plan()))
    verbs = get_command(cli.app).commands
    called = [words for _, words in demo._verbs(tmp_path, 2)]
    assert {verb for verb, *_ in called} >= {"profile", "solve", "tune", "compare"}
    for verb, *words in called:
        verbs[verb].make_context(verb, list(words), obj=[])


def test_a_prediction_of_more_than_a_year_is_refused(here, command):
    (here / "profile.json").write_text(json.dumps(profile(forward_s=YEAR_S)))
    said = command.refused("solve", "profile.json", "network.json", "-o", "out.json")
    assert "must be at most 31622400" in said
    assert not (here / "out.json").exists()


def run_record(median_s, **changes):
    fields = {
        "workload": "two",
        "model_fingerprint": PROFILE.model.fingerprint,
        "backend": "gloo",
        "world_size": 2,
        "steps": 9,
        "iteration": IterationTimes(count=6, median_s=median_s, p95_s=1, min_s=0),
    }
    return RunRecord(**(fields | changes))


def test_several_runs_are_shown_side_by_side(here, command):
    run_record(0.3, solver=STOCK_DDP).save(here / "run-ddp.json")
    planned = {"plan_sha256": "x", "predicted_iteration_s": 0.09}
    run_record(0.1, solver="lags", **planned).save(here / "run-lags.json")
    shown = command("show", "run-ddp.json", "plan.json", "run-lags.json")
    assert shown.returncode == 0, shown.stderr
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["ddp", "-", "300", "ms", "-", "1.00x", "-"] in rows
    assert ["lags", "90.0", "ms", "100", "ms", "-10.0%", "3.00x", "-"] in rows
    assert "buckets, in launch order" in shown.stdout
    targeted = command("show", "run-ddp.json", "run-lags.json", "--target", 0.9)
    assert "--target 0.9: none of these runs has a metric" in targeted.stderr
    for words, refused in (
        (("run-ddp.json", "--target", 1), "--target is for several run records"),
        (("run-ddp.json", here / "run-ddp.json"), "give each file a name of its own"),
    ):
        assert refused in command("show", *words).stderr


@pytest.mark.parametrize(
    "other",
    [
        {"workload": "other", "model_fingerprint": "another"},
        {"workload": "other", "world_size": 3},
        {"workload": "other", "emulated_link": EmulatedLink.parse("100mbit")},
    ],
)
def test_only_runs_that_can_be_compared_are_shown_side_by_side(here, command, other):
    for name, changes in {
        "run-a.json": {}, "run-b.json": {}, "run-c.json": other,
    }.items():  # fmt: skip
        run_record(0.3, solver="lags", **changes).save(here / name)
    shown = command("show", "run-a.json", "run-c.json", "run-b.json").stdout
    rows = [line.split() for line in shown.splitlines()]
    assert "two, 2 x gloo, no emulated link, side by side" in shown
    assert {"a", "b"} <= {row[0] for row in rows if "1.00x" in row}
    assert not any(row[:1] == ["c"] for row in rows)
    assert "workload" in shown
    assert "other" in shown
    refused = command("show", "run-a.json", "run-c.json", "--target", 1).stderr
    assert "--target is for several run records of one model" in refused


def test_solve_writes_a_plan_and_prints_every_solver(here, command):
    run = command("solve", "profile.json", "network.json", "-o", "out.json", "--json")
    assert run.returncode == 0, run.stderr
    written = Plan.load(here / "out.json")
    assert Plan.from_json(run.stdout) == written
    assert [t for b in written.buckets for t in b.tensors] == ["b", "a"]
    assert written.inputs.profile_sha256 == Profile.load(here / "profile.json").sha256
    for solver in ("optimal", "mg-wfbp", "threshold", "wfbp", "single"):
        assert solver in run.stderr


def test_solve_exports_to_those_who_stay_with_ddp(here, command, monkeypatch):
    documents = "profile.json", "network.json"
    run = command("solve", *documents, "-o", "out.json", "--export", "ddp")
    assert run.returncode == 0, run.stderr
    assert "wrote out_ddp.py" in run.stderr
    monkeypatch.syspath_prepend(here)
    assert callable(import_module("out_ddp").wrap)


def test_what_cannot_be_exported_is_refused_before_anything_is_written(here, command):
    profiled = Profile.load(here / "profile.json")
    cost = CompressionCost(numel=1, compress_s=0, decompress_s=0)
    costs = {"compression": {"bf16": (cost,)}}
    profiled.model_copy(update=costs).save(here / "profile.json")
    documents = "profile.json", "network.json"
    how = "--compressor", "bf16", "--export", "horovod"
    run = command("solve", *documents, "-o", "out.json", *how)
    assert run.returncode == 2
    assert "Horovod cannot compress by bf16" in run.stderr
    assert not (here / "out.json").exists()


def test_solve_marks_what_it_extrapolates(here, command):
    run = command("solve", "profile.json", "network.json", "-o", "out.json",
                  "--world-size", 16)  # fmt: skip
    assert "extrapolated from 2" in " ".join(run.stderr.split())
    assert Plan.load(here / "out.json").predicted.extrapolated_from == 2


BAD_PROFILES = {
    "{": "not JSON",
    json.dumps(profile(version=7)): "version 7",
    json.dumps(profile(colour=1)): "colour",
    json.dumps(profile(forward_s=float("nan"))): "NaN",
    json.dumps(profile(forward_s=-0.5)): "-0.5",
    json.dumps(profile(tensors=profile()["tensors"][::-1])): "ready order",
    json.dumps(profile(tensors=profile()["tensors"][:1] * 2)): "b is listed",
}


@pytest.mark.parametrize("text", BAD_PROFILES, ids=list(BAD_PROFILES.values()))
def test_a_bad_profile_is_refused_and_nothing_is_written(here, command, text):
    (here / "profile.json").write_text(text)
    said = command.refused("solve", "profile.json", "network.json", "-o", "out.json")
    assert "profile.json" in said
    assert BAD_PROFILES[text] in said
    assert not (here / "out.json").exists()


def test_a_result_that_cannot_be_written_is_told_before_the_work(here, command):
    said = command.refused("solve", "profile.json", "network.json",
                           "-o", "absent/out.json")  # fmt: skip
    assert "absent" in said


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ("solve profile.json network.json --solver best", "--solver optimal auto"),
        ("solve profile.json network.json --compressor best", "--compressor terngrad"),
        ("profile digits --compressors best", "terngrad"),
        ("profile digits --backend best", "--backend gloo nccl mpi"),
        ("profile digits --device best", "--device cpu cuda"),
        ("profile best", "digits"),
    ],
)
def test_unknown_names_are_refused_with_what_is_known(here, command, words, known):
    said = command.refused(*words.split())
    assert all(word in said for word in ("best", *known.split()))


REPLAYED = "replay:profile.json"
BAD_PLANS = {
    "another world size": (plan(world_size=4), "--world-size 1"),
    "another model": (
        plan(model={"name": "two", "fingerprint": "sha256:00"}),
        "other shapes",
    ),
    "a missing tensor": (plan(buckets=[{"tensors": ["b"]}]), "tensor a "),
    "a doubled tensor": (
        plan(buckets=[{"tensors": ["b", "a"]}, {"tensors": ["a"]}]),
        "tensor a is in the plan twice",
    ),
    "a foreign tensor": (
        plan(buckets=[{"tensors": ["b", "a", "c"]}]),
        "tensor c ",
    ),
    "an unknown compressor": (
        plan(buckets=[{"tensors": ["b", "a"], "compressor": {"kind": "zip"}}]),
        "zip",
    ),
    "density 0": (
        plan(
            buckets=[
                {
                    "tensors": ["b", "a"],
                    "compressor": {"kind": "topk", "density": 0},
                    "collective": "allgather",
                }
            ]
        ),
        "density",
    ),
}


@pytest.mark.parametrize("fault", BAD_PLANS)
def test_a_bad_plan_is_refused_before_training(here, command, fault):
    document, message = BAD_PLANS[fault]
    (here / "plan.json").write_text(json.dumps(document))
    assert message in command.refused("train", REPLAYED, "--plan", "plan.json")
    assert not (here / "run.json").exists()


BAD_INPUT = ("solve", "profile.json", "absent.json")


def test_a_process_ends_with_code_2_on_bad_input_and_one_line(folder):
    run = process(*BAD_INPUT, cwd=folder)
    said = Ended(run.returncode, run.stdout, run.stderr).refusal(2)
    assert said.startswith("comm-plan: error: ")
    assert "absent.json" in said
    assert len(run.stderr.splitlines()) == 1


def test_debug_shows_where_it_was_raised(folder):
    run = process("--debug", *BAD_INPUT, cwd=folder)
    assert run.returncode == 2
    assert "Traceback" in run.stderr
    assert run.stderr.splitlines()[-1].startswith("comm-plan: error: ")


@pytest.mark.parametrize(("rank", "first"), [(0, []), (1, ["waits"])])
def test_every_rank_says_what_input_is_bad_and_rank_0_is_first(
    here, command, monkeypatch, rank, first
):
    said = []
    monkeypatch.setattr(cli.time, "sleep", lambda seconds: said.append("waits"))
    monkeypatch.setattr(cli.screen, "explain", lambda error: said.append(str(error)))
    for name, number in (("RANK", rank), ("WORLD_SIZE", 2), ("LOCAL_RANK", rank)):
        monkeypatch.setenv(name, str(number))
    assert command("train", REPLAYED, "--plan", "absent.json").returncode == 2
    assert said == [*first, "absent.json: cannot be read: no such file or directory"]


def test_a_resumed_run_that_was_done_leaves_its_record(here, command):
    run = ("train", REPLAYED, "--plan", "plan.json", "--steps", 3, "-o", "run.json")
    kept = (*run, "--checkpoint", "checkpoints")
    assert command(*kept).returncode == 0
    record = (here / "run.json").read_text()
    again = command(*kept, "--resume")
    assert again.returncode == 0
    assert "nothing was left to do: run.json stays as it is" in again.stderr
    assert (here / "run.json").read_text() == record


def test_an_error_is_said_where_the_environment_contradicts_itself(
    here, command, monkeypatch
):
    for name, number in (("RANK", 5), ("WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(number))
    assert "absent.json: cannot be read" in command("show", "absent.json").stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "who"), [("plan-$RANK.json", "rank 1"), ("absent.json", "rank ")]
)
def test_under_torchrun_bad_input_is_said_wherever_it_is_found(folder, path, who):
    """The first path is there on rank 0 only, which is not left to wait for rank 1."""
    (folder / "plan-0.json").write_text(json.dumps(plan(world_size=2)))
    train = f"{sys.executable} -m comm_plan.cli train {REPLAYED} --plan {path}"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    run = subprocess.run(
        [*torchrun, "--standalone", "--no-python", "sh", "-c", f"exec {train}"],
        cwd=folder, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert run.returncode != 0
    said = [line for line in run.stderr.splitlines() if "comm-plan: error" in line]
    assert said
    for line in said:
        assert line.startswith(f"comm-plan: error: {who}")
        assert line.endswith("json: cannot be read: no such file or directory")


LINK = ("--emulate-link", "1gbit:1ms")


def on_two_ranks(*arguments):
    """Run the command on two ranks behind an emulated link; it must succeed."""
    run = process(*arguments, *LINK, "--local-ranks", 2)
    assert run.returncode == 0, run.stderr
    return run


def forked_on_two_ranks(*arguments, **options):
    """Do the same with forked ranks, which start faster than ``--local-ranks``."""
    forked.run("comm_plan.cli", 2, *arguments, *LINK, **options)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A folder with a profile and a network that two ranks have measured."""
    folder = tmp_path_factory.mktemp("measured")
    write_documents(folder)
    profiling = ("profile", REPLAYED, "-o", "again.json", "--compressors", "topk")
    forked_on_two_ranks(*profiling, cwd=folder)
    forked_on_two_ranks(
        "benchmark-network", "-o", "net.json", "--max-bytes", 4096, "--budget", 1,
        "--collectives", "allreduce,allgather", cwd=folder,
    )  # fmt: skip
    return folder


@pytest.fixture
def measured_here(measured, here):
    """What was measured, in the working directory."""
    for name in ("again.json", "net.json"):
        shutil.copy(measured / name, here)
    return here


@pytest.mark.slow
def test_the_loop_from_profile_to_run_record(measured_here, command):
    here = measured_here
    run = command("solve", "again.json", "net.json")
    assert run.returncode == 0, run.stderr
    on_two_ranks("train", REPLAYED, "--plan", "plan.json", "--steps", 8)
    again = Profile.load(here / "again.json")
    assert again.model.fingerprint == PROFILE.model.fingerprint
    assert [t.name for t in again.tensors] == [t.name for t in PROFILE.tensors]
    assert again.contention.world_size == 2
    assert Network.load(here / "net.json").world_size == 2
    record = RunRecord.load(here / "run.json")
    assert record.steps == 8
    assert record.world_size == 2
    planned = Plan.load(here / "plan.json")
    assert record.predicted_iteration_s == planned.predicted.iteration_s
    for name in ("again.json", "net.json", "plan.json", "run.json"):
        shown = command("show", name)
        assert shown.returncode == 0, shown.stderr


@pytest.mark.slow
def test_plans_are_tuned_and_compared_behind_an_emulated_link(measured_here, command):
    here = measured_here
    inputs = ("again.json", "net.json")
    documents = ("--profile", inputs[0], "--network", inputs[1])
    tuning = ("tune", REPLAYED, "-o", "tuning", "--budget", 60, *documents)
    tuned = on_two_ranks(*tuning)
    tuning = Tuning.load(here / "tuning" / "tuning.json")
    assert tuning.took_s <= tuning.budget_s  # A busy machine may not complete it.
    assert tuning.advice.split()[0] in " ".join(tuned.stderr.split())
    for solver in ("wfbp", "single"):
        run = command("solve", *inputs, "-o", f"plan-{solver}.json", "--solver", solver)
        assert run.returncode == 0, run.stderr
    on_two_ranks(
        "compare", REPLAYED, "plan-wfbp.json", "plan-single.json", "-o", "runs",
        "--steps", 8,
    )  # fmt: skip
    forked_on_two_ranks(
        "train", REPLAYED, "--plan", "plan-single.json", "--steps", 25,
        "-o", "runs/run-adapted.json", "--adapt", *inputs,
    )  # fmt: skip
    records = [RunRecord.load(path) for path in sorted((here / "runs").glob("*.json"))]
    assert [record.solver for record in records] == ["single", "single", "wfbp"]
    network = Network.load(here / "net.json")
    for document in (network, tuning, *records):
        assert document.emulated_link == EmulatedLink.parse("1gbit:1ms")
    page = command("report", "tuning", "-o", "report.html")
    assert page.returncode == 0, page.stderr


def test_one_rank_has_nothing_to_tune(here, command):
    words = ("tune", REPLAYED, "--network", "network.json")
    assert "one rank has nothing to communicate" in command.refused(*words)


@pytest.mark.parametrize("file", ["plan.json", "next-network.json", "tuning.json"])
def test_a_tuning_that_cannot_be_written_is_refused_before_the_work(
    here, command, monkeypatch, file
):
    def tune(*arguments, **options):
        raise AssertionError("it began")

    monkeypatch.setattr("comm_plan.tuner.tune.tune", tune)
    (here / "tuning" / file).mkdir(parents=True)
    said = command.refused("tune", REPLAYED)
    assert f"tuning/{file}: cannot be written: it is a folder" in said


@pytest.mark.parametrize("saved", [True, False])
def test_who_interrupts_a_tuning_is_told_where_its_best_is(
    here, command, monkeypatch, saved
):
    def interrupted(context, ranks):
        if saved:
            (here / "tuning" / "plan.json").write_text("this tuning's")
        raise KeyboardInterrupt

    (here / "tuning").mkdir()
    (here / "tuning" / "plan.json").write_text("an earlier tuning's")
    os.utime(here / "tuning" / "plan.json", (0, 0))
    monkeypatch.setattr("comm_plan.commands.launching.start_ranks", interrupted)
    ended = command("tune", REPLAYED)
    assert ended.returncode == 130
    told = "interrupted: the best so far is tuning/plan.json" in ended.stderr
    assert told == saved


def test_compare_says_that_a_plan_is_for_another_link(here, command):
    link = EmulatedLink.parse("100mbit")
    (here / "plan.json").write_text(json.dumps(plan(emulated_link=link.model_dump())))
    run = command("compare", REPLAYED, "plan.json", "--steps", 2)
    assert run.returncode == 0, run.stderr
    said = " ".join(run.stderr.split())
    assert f"plan.json is for {link}, this run is on no emulated link" in said


@pytest.mark.parametrize("verb", [("train", "--plan"), ("compare",)])
@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ({}, None),
        ({"batch_size": 32, "threads": 1}, None),
        ({"batch_size": 7}, "7 samples a rank, here are 32"),
        ({"threads": 999}, "999 threads a rank, here are 1"),
    ],
)
def test_that_a_plan_is_for_other_conditions_is_said(
    here, command, verb, measured, said
):
    inputs = {"profile_sha256": "x", "network_sha256": "y", **measured}
    (here / "plan.json").write_text(json.dumps(plan(inputs=inputs)))
    first, *option = verb
    run = command(first, REPLAYED, *option, "plan.json", "--steps", 2)
    assert run.returncode == 0, run.stderr
    remarks = " ".join(run.stderr.split())
    assert ("plan.json is for" in remarks) == (said is not None)
    assert f"plan.json is for {said}: its predictions" in remarks or said is None


@pytest.mark.parametrize("verb", [("train", "--plan"), ("compare",)])
def test_a_plan_for_other_ranks_is_refused_before_any_is_started(here, command, verb):
    first, *option = verb
    words = (first, REPLAYED, *option, "plan.json", "--local-ranks", 3)
    message = command.refused(*words)
    assert message.endswith(
        "plan.json is for 1 rank, --local-ranks starts 3: start 1, or solve with "
        "--world-size 3"
    )


@pytest.mark.parametrize("verb", [("train", "--plan"), ("compare",)])
def test_a_plan_of_another_model_is_refused_before_ranks_connect(
    here, command, monkeypatch, verb
):
    (here / "plan.json").write_text(json.dumps(plan(buckets=[{"tensors": ["b"]}])))
    connecting = []
    monkeypatch.setattr("comm_plan.transports.connect.connect", refuse(connecting))
    first, *option = verb
    said = command.refused(first, REPLAYED, *option, "plan.json")
    assert "tensor a of the model is missing in the plan" in said
    assert connecting == []


def test_compare_says_that_no_run_has_a_metric_to_get_to_a_target(here, command):
    run = command("compare", REPLAYED, "plan.json", "--steps", 2, "--target", 0.9)
    assert run.returncode == 0, run.stderr
    said = " ".join(run.stderr.split())
    assert "--target 0.9: no run has a metric" in said
    assert "evaluate function whose values are not inf or NaN" in said


UNUSED = """
import torch
from torch import nn

class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(4, 2, bias=False), nn.Linear(4, 2, bias=False)

    def forward(self, x):
        return self.used(x)

def make():
    batch = torch.ones(3, 4), torch.zeros(3, dtype=torch.long)
    return Half(), [batch] * 4, nn.CrossEntropyLoss()
"""


@pytest.mark.parametrize("told", [(), ("--find-unused-parameters",)])
def test_profile_says_what_training_will_have_to_be_told(here, command, told):
    (here / "half.py").write_text(UNUSED)
    words = ("profile", "half.py:make", "--iterations", 20, "--compressors", "none")
    run = command(*words, *told)
    assert run.returncode == 0, run.stderr
    said = "no gradient came for spare.weight: train with --find-unused-parameters"
    assert (said in " ".join(run.stderr.split())) == (not told)


def test_models_with_unused_parameters_can_be_compared(here, command):
    (here / "half.py").write_text(UNUSED)
    shapes = [(f"{name}.weight", (2, 4), "float32") for name in ("used", "spare")]
    document = plan(
        model={"name": "half", "fingerprint": fingerprint(shapes)},
        buckets=[{"tensors": ["spare.weight", "used.weight"]}],
    )
    (here / "plan.json").write_text(json.dumps(document))
    words = ("compare", "half.py:make", "plan.json", "--steps", 2)
    assert "--find-unused-parameters" in command.refused(*words, code=1)
    run = command(*words, "--find-unused-parameters")
    assert run.returncode == 0, run.stderr


def test_tune_is_told_of_unused_parameters(here, command, monkeypatch):
    given = []

    def stop(workload, transport, options, save):
        given.append(options.find_unused_parameters)
        raise InputError("enough")

    monkeypatch.setattr("comm_plan.tuner.tune.tune", stop)
    command.refused("tune", REPLAYED)
    command.refused("tune", REPLAYED, "--find-unused-parameters")
    assert given == [False, True]


def test_a_link_that_cannot_be_read_is_refused(here, command):
    words = ("train", REPLAYED, "--plan", "plan.json", "--emulate-link", "fast")
    assert "give a rate in kbit, mbit or gbit" in command.refused(*words)


def test_costs_that_the_plan_was_not_solved_from_cannot_be_adapted(here, command):
    made = command("solve", "profile.json", "network.json", "--world-size", 1)
    assert made.returncode == 0, made.stderr
    (here / "other.json").write_text(json.dumps(profile(batch_size=7)))
    refusal = command.refused(
        "train", REPLAYED, "--plan", "plan.json", "--steps", 2,
        "--adapt", "other.json", "network.json",
    )  # fmt: skip
    assert "the plan was solved from another profile" in refusal


@pytest.mark.parametrize("suffix", ["png", "html", "json"])
def test_report_draws_a_file(here, command, suffix):
    target = here / f"timeline.{suffix}"
    run = command("report", "profile.json", "network.json", "-o", target)
    assert run.returncode == 0, run.stderr
    assert target.stat().st_size > 100


def test_report_and_simulate_print(here, command):
    inputs = ("profile.json", "network.json")
    drawn = command("report", *inputs)
    assert drawn.returncode == 0, drawn.stderr
    assert "optimal" in drawn.stdout
    table = command("simulate", *inputs, "--world-sizes", "2,8", "--by-layer")
    assert table.returncode == 0, table.stderr
    assert "8 *" in table.stdout
    assert "speed-up over one rank" in table.stdout


BEYOND = "allreduce was measured up to 8 B, the longest message has 48 B: "


@pytest.fixture
def short_network(here):
    """A network of two ranks that was measured up to 8 bytes, ``network.json``."""
    cost = fit((0, 1e-3, 1e-8)).model_copy(
        update={"samples": samples((8, 1e-3)).samples}
    )
    measured = network(world_size=2, allreduce=cost)
    measured.save(here / "network.json")
    return measured


def test_simulate_shows_ranks_and_solvers_that_are_given_twice_once(here, command):
    twice = ("--world-sizes", "2,8,2", "--solvers", "wfbp,wfbp")
    once = ("--world-sizes", "2,8", "--solvers", "wfbp")
    said = [
        command("simulate", "profile.json", "network.json", *words).stdout
        for words in (twice, once)
    ]
    assert said[0] == said[1]


def test_simulate_says_once_that_messages_are_longer_than_what_was_measured(
    short_network, command
):
    run = command("simulate", "profile.json", "network.json", "--world-sizes", "1,2,4")
    assert run.returncode == 0, run.stderr
    assert " ".join(run.stderr.split()).count(BEYOND) == 1


def test_tune_says_that_messages_are_longer_than_what_was_measured(
    here, short_network, command, monkeypatch
):
    buckets = [{"tensors": ["b", "a"]}]
    (here / "plan.json").write_text(json.dumps(plan(world_size=2, buckets=buckets)))
    tuned = SimpleNamespace(
        tuning=None,
        plans={"single": Plan.load(here / "plan.json")},
        profile=PROFILE,
        network=short_network,
    )
    monkeypatch.setattr("comm_plan.tuner.tune.tune", lambda *_, **__: tuned)
    monkeypatch.setattr("comm_plan.commands.tune.finish", lambda *_: None)
    run = command("tune", REPLAYED)
    assert BEYOND in " ".join(run.stderr.split())


def test_a_plan_of_one_rank_is_for_no_emulated_link(here, command):
    link = EmulatedLink.parse("100mbit")
    measured = network(world_size=2).model_copy(update={"emulated_link": link})
    measured.save(here / "network.json")
    words = ("solve", "profile.json", "network.json")
    for ranks, planned_link in ((1, None), (2, link)):
        run = command(*words, "--world-size", ranks)
        assert run.returncode == 0, run.stderr
        assert Plan.load(here / "plan.json").emulated_link == planned_link


def test_a_table_of_layers_becomes_a_profile(here, command):
    (here / "net.csv").write_text("layer,numel,forward_s,backward_s\na,10,0.1,0.2\n")
    run = command("profile", "--from-csv", "net.csv", "-o", "made.json")
    assert run.returncode == 0, run.stderr
    assert Profile.load(here / "made.json").backward_s == 0.2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give one of WORKLOAD, --from-model and --from-csv"),
        (("digits", "--from-csv", "net.csv"), "give one of WORKLOAD"),
        (("--from-model", "digits"), "--from-model and --flops-per-s go together"),
    ],
)
def test_a_profile_has_one_source(here, command, words, message):
    run = command("profile", *words)
    assert run.returncode == 2
    assert message in run.stderr


WORKLOAD = """
import os, signal, time
import torch
from torch import nn

def make():
    model = nn.Linear(4, 2)
    def data(rank, world_size, epoch, seed):
        for step in range(100_000):
            if step == 20 and rank == int(os.environ["VICTIM"]):
                {act}
            yield torch.ones(3, 4), torch.zeros(3, dtype=torch.long)
    return model, data, nn.CrossEntropyLoss()
"""


def write_own(tmp_path, act, ranks):
    """Write a workload in which ``act`` happens, and a plan for it."""
    (tmp_path / "own.py").write_text(WORKLOAD.format(act=act))
    document = plan(
        world_size=ranks,
        model={
            "name": "own",
            "fingerprint": fingerprint(
                [("weight", (2, 4), "float32"), ("bias", (2,), "float32")]
            ),
        },
        buckets=[{"tensors": ["bias", "weight"]}],
    )
    (tmp_path / "plan.json").write_text(json.dumps(document))


def run_with_a_victim(tmp_path, act, victim, ranks=3):
    write_own(tmp_path, act, ranks)
    return process(
        "train", "own.py:make", "--plan", "plan.json", "--local-ranks", ranks,
        cwd=tmp_path, env={**os.environ, "VICTIM": str(victim)},
    )  # fmt: skip


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_and_is_named_by_the_others(tmp_path):
    victim = 2
    kill = f"os.kill(os.getpid(), {int(signal.SIGKILL)})"
    run = run_with_a_victim(tmp_path, kill, victim)
    assert run.returncode == 1, run.stderr
    assert "Traceback" not in run.stderr
    for rank in {0, 1, 2} - {victim}:
        mine = [li for li in run.stderr.splitlines() if f"error: rank {rank}:" in li]
        assert len(mine) == 1, run.stderr
        assert f"rank {victim} died" in mine[0]
    assert not (tmp_path / "run.json").exists()


@pytest.mark.slow
def test_a_rank_that_runs_out_of_batches_is_named(tmp_path):
    run = run_with_a_victim(tmp_path, "return", 1, ranks=2)
    assert run.returncode == 1, run.stderr
    said = {li.partition(": rank ")[2][3:] for li in run.stderr.splitlines()}
    verdict = (
        "rank 1 has run out of batches in epoch 0 after 20, rank 0 has more: give all "
        "ranks as many"
    )
    assert said == {verdict}, run.stderr


@pytest.mark.slow
def test_a_rank_0_that_never_comes_is_said_in_one_line(tmp_path, port):
    write_own(tmp_path, "pass", ranks=2)
    run = process(
        "train", "own.py:make", "--plan", "plan.json", "--timeout", 1,
        cwd=tmp_path, env={**os.environ, **rank_variables(1, 2, port)},
    )  # fmt: skip
    assert run.returncode == 1, run.stderr
    (line,) = run.stderr.splitlines()
    assert line.startswith("comm-plan: error: rank 1: rank 1 did not meet all 2 ranks")


@pytest.mark.slow
def test_an_exception_on_one_rank_is_told_by_all(tmp_path):
    run = run_with_a_victim(tmp_path, "raise ValueError('bad sample')", 1)
    assert run.returncode == 1, run.stderr
    assert "Traceback" not in run.stderr
    assert "error: rank 1: ValueError: bad sample" in run.stderr
    for rank in (0, 2):
        mine = [li for li in run.stderr.splitlines() if f"error: rank {rank}:" in li]
        assert len(mine) == 1, run.stderr
        assert "rank 1 failed" in mine[0]
        assert "bad sample" in mine[0]


def test_the_examples_in_plans_are_valid(command):
    examples = Path(__file__).parent.parent / "plans" / "examples"
    names = sorted(path.name for path in examples.glob("*.json"))
    assert names
    for name in names:
        run = command("show", examples / name)
        assert run.returncode == 0, run.stderr
    profile = Profile.load(examples / "resnet50.profile.json")
    network = Network.load(examples / "10gbe-16.network.json")
    plan = Plan.load(examples / "resnet50-10gbe-16.plan.json")
    solved = solve(make_problem(profile, network))
    assert solved.model_copy(update={"predicted": plan.predicted}) == plan
