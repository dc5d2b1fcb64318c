"""``comm-plan report``: from files and folders to a page or to timelines."""

import json
import os
from pathlib import Path

import pytest

from comm_plan import reporting
from comm_plan.errors import DocumentError, InputError
from comm_plan.planner import Settings, make_problem, summarise
from comm_plan.plans import Network
from comm_plan.tests.support import documents as build
from comm_plan.tests.support.page import Page
from comm_plan.tests.support.planning import planned

PROFILE = build.profile([0.01, 0.02], [250_000, 1_000], forward_s=0.005)
NETWORK = build.network()
PLAN = planned(PROFILE, NETWORK)


@pytest.fixture
def folder(tmp_path):
    PROFILE.save(tmp_path / "profile.json")
    NETWORK.save(tmp_path / "network.json")
    (tmp_path / "notes.json").write_text(json.dumps({"schema": "of another tool"}))
    (tmp_path / "notes.txt").write_text("no document")
    return tmp_path


def page(*words, command, output):
    run = command("report", *words, "-o", output)
    assert run.returncode == 0, run.stderr
    return Page(output.read_text(encoding="utf-8"))


def test_a_folder_is_the_documents_in_it(folder):
    names = [Path(name).name for name, _ in reporting.read([folder])]
    assert names == ["network.json", "profile.json"]


def test_what_tune_leaves_for_the_next_time_is_another_story(folder):
    build.profile([0.01, 0.03], [250_000, 1_000]).save(folder / "next-profile.json")
    assert len(reporting.read([folder])) == 2


def test_the_copy_of_the_winners_plan_does_not_hide_its_name(folder, command):
    PLAN.save(folder / "plan-best.json")
    PLAN.save(folder / "plan.json")
    trial = build.trial("the best", 0.1, 0.2, plan="plan-best.json")
    build.tuning(PROFILE, trial).save(folder / "tuning.json")
    found = page(folder, command=command, output=folder / "report.html")
    assert "the best: predicted" in found.text


def test_order_does_not_matter(folder, command):
    files = folder / "profile.json", folder / "network.json"
    one = page(*files, command=command, output=folder / "a.html")
    other = page(*files[::-1], command=command, output=folder / "b.html")
    assert one.sections == other.sections
    assert one.sections[0] == "timelines"


def test_the_page_says_what_the_planner_says(folder, command):
    found = page(folder, command=command, output=folder / "report.html")
    problem = make_problem(PROFILE, NETWORK, Settings())
    summary = summarise(problem, ["wfbp", "threshold", "optimal"])
    assert f"predicted: {summary.verdict}" in found.text
    assert {row.iteration_s for row in summary.rows} <= set(found.values())


MIXED = build.profile(
    [0.002] * 6, [100_000] * 6, dtypes=["float32", "bfloat16"] * 3, forward_s=0.005
)
"""Its tensors are not sent in the order in which they are ready."""


@pytest.mark.parametrize("profile", [PROFILE, MIXED])
def test_scaling_holds_what_the_planner_predicts_for_each_number_of_ranks(
    folder, command, profile
):
    profile.save(folder / "profile.json")
    found = page(
        folder, "--solvers", "optimal", command=command, output=folder / "r.html"
    )
    for ranks in reporting.RANKS:
        problem = make_problem(profile, NETWORK, Settings(world_size=ranks))
        summary = summarise(problem, ["optimal"], beside=())
        (row,) = summary.rows
        assert {row.iteration_s, summary.lower_bound_s} <= set(found.values())


def test_other_ranks_are_said_to_be_extrapolated(folder, command):
    output = folder / "report.html"
    found = page(folder, "--world-size", 16, command=command, output=output)
    assert "16 ranks are extrapolated from 4" in found.text


def test_without_a_file_timelines_are_drawn_in_the_terminal(folder, command):
    drawn = command("report", folder, "--solvers", "wfbp,optimal")
    assert drawn.returncode == 0, drawn.stderr
    assert "wfbp" in drawn.stdout
    assert "optimal" in drawn.stdout


def test_timelines_of_plans_take_the_place_of_simulated_ones(folder):
    PLAN.save(folder / "plan.json")
    (line,) = reporting.draw([folder], ["wfbp"])
    assert line.title == "optimal: predicted"
    assert line.iteration_s == PLAN.predicted.iteration_s


@pytest.mark.parametrize("suffix", ["png", "json"])
def test_timelines_alone_go_into_other_files(folder, command, suffix):
    if suffix == "png":
        pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    output = folder / "out" / f"timelines.{suffix}"
    output.parent.mkdir()
    run = command("report", folder, "-o", output)
    assert run.returncode == 0, run.stderr
    assert output.stat().st_size > 100


def test_a_solver_that_cannot_be_priced_is_left_out(folder, command):
    words = "--solvers", "wfbp,lags"
    found = page(folder, *words, command=command, output=folder / "report.html")
    assert "lags is left out: " in found.text
    assert "timelines" in found.sections
    assert "no compression costs" in command.refused("report", folder, *words)


def test_plans_are_shown_though_nothing_can_be_planned(folder, command):
    cost = build.fit((0, 1e-3, 1e-8))
    network = Network(backend="gloo", world_size=4, collectives={"allgather": cost})
    network.save(folder / "network.json")
    found = page(folder, command=command, output=folder / "report.html")
    assert "nothing is predicted: " in found.text
    PLAN.save(folder / "plan.json")
    found = page(folder, command=command, output=folder / "report.html")
    assert {"timelines", "solvers", "network"} <= set(found.sections)
    assert "Not shown: " in found.text
    assert "optimal: predicted" in found.text


def test_ranks_that_are_asked_for_are_simulated_beside_plans(folder):
    PLAN.save(folder / "plan.json")
    lines = reporting.draw([folder], ["wfbp"], world_size=16)
    assert [line.title for line in lines] == ["optimal: predicted", "wfbp, 16 ranks"]


def test_without_solvers_there_is_nothing_to_draw(folder, command):
    words = command.refused("report", folder, "--solvers", "")
    assert "solvers to simulate" in words
    page(folder, "--solvers", "", command=command, output=folder / "report.html")


def test_a_file_may_have_a_name_that_is_no_text(folder):
    name = folder / os.fsdecode(b"plan-\xff.json")
    PLAN.save(name)
    reporting.write([folder], folder / "report.html", ["wfbp"])
    assert r"plan-\udcff.json" in (folder / "report.html").read_text(encoding="utf-8")


def test_a_profile_alone_has_no_timeline(folder, command):
    words = command.refused("report", folder / "profile.json")
    assert "give a profile and a network" in words


def test_another_suffix_is_refused(folder, command):
    words = command.refused("report", folder, "-o", folder / "report.pdf")
    assert "end the name in .html, .png or .json" in words


def test_ranks_without_a_network_are_refused(folder, command):
    words = command.refused("report", folder / "profile.json", "--world-size", 8)
    assert "--world-size 8: give a profile and a network" in words


def test_an_unknown_solver_is_refused(folder, command):
    assert "'magic' is unknown" in command.refused(
        "report", folder, "--solvers", "magic"
    )


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no documents"):
        reporting.read([tmp_path])


FOREIGN = {
    "list": '[{"schema": "comm-plan/plan"}]',
    "comments": '{"at": "comm-plan/plan"} // ours',
    "text": "comm-plan/plan",
}


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
def test_files_of_others_are_passed_over_in_a_folder_only(folder, text):
    foreign = folder / "other.json"
    foreign.write_text(text)
    (folder / "a folder.json").mkdir()
    assert len(reporting.read([folder])) == 2
    with pytest.raises(DocumentError, match=r"other\.json: "):
        reporting.read([foreign])


def test_a_document_that_is_cut_off_is_named(folder):
    text = PLAN.to_json()
    (folder / "plan.json").write_text(text[: len(text) // 2])
    with pytest.raises(DocumentError, match=r"plan\.json: not JSON"):
        reporting.read([folder])


def test_a_document_that_is_broken_is_named(folder):
    (folder / "plan.json").write_text('{"schema": "comm-plan/plan", "version": 1}')
    with pytest.raises(DocumentError, match=r"plan\.json: solver: is missing"):
        reporting.read([folder])


def test_nothing_is_written_when_documents_do_not_fit(folder, command):
    build.plan(build.profile([0.1], [5])).save(folder / "plan.json")
    assert "of one model" in command.refused("report", folder, "-o", folder / "r.html")
    assert not (folder / "r.html").exists()
