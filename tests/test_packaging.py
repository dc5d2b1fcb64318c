"""The package list in pyproject.toml is written by hand; it must be complete."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOT_SHIPPED = {"tests", "benchmarks", "docs", "examples", "build", "site"}


def packages_in_folders():
    found = {"comm_plan"}
    for init in ROOT.rglob("__init__.py"):
        parts = init.parent.relative_to(ROOT).parts
        if parts and parts[0] not in NOT_SHIPPED and not parts[0].startswith("."):
            found.add(".".join(("comm_plan", *parts)))
    return found


def packages_in_pyproject():
    text = (ROOT / "pyproject.toml").read_text()
    listed = re.search(r"^packages = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    return set(re.findall(r'"([\w.]+)"', listed[1]))


def test_every_folder_with_modules_is_packaged():
    assert packages_in_pyproject() == packages_in_folders()


def test_every_folder_with_modules_has_an_init():
    for module in ROOT.rglob("*.py"):
        parts = module.relative_to(ROOT).parts
        if parts[0] in NOT_SHIPPED or parts[0].startswith("."):
            continue
        assert (module.parent / "__init__.py").exists(), module


@pytest.mark.parametrize(
    "module",
    [
        "comm_plan",
        "comm_plan.cli",
        "comm_plan.plans",
        "comm_plan.planner",
        "comm_plan.collectives.costs",
        "comm_plan.compressors",
    ],
)
def test_planning_needs_no_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_solving_loads_no_solver_that_is_not_asked_for(tmp_path):
    examples = ROOT / "plans" / "examples"
    words = [
        "solve",
        str(examples / "resnet50.profile.json"),
        str(examples / "10gbe-16.network.json"),
        *("-o", str(tmp_path / "plan.json")),
    ]
    code = (
        "import os, sys\nfrom comm_plan.cli import app\n"
        f"app({words!r}, standalone_mode=False)\n"
        "unused = {'auto', 'lags', 'slgs', 'joint'}\n"
        "loaded = {m for m in unused if f'comm_plan.planner.{m}' in sys.modules}\n"
        "rooms = ('torch', 'comm_plan.runtime', 'comm_plan.profiler')\n"
        "sys.exit(str(loaded) if loaded else any(r in sys.modules for r in rooms))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert run.returncode == 0, run.stderr.decode()


def test_pre_commit_runs_the_linters_of_make_lint():
    linters = re.search(r"^LINTERS := (.*)$", (ROOT / "Makefile").read_text(), re.M)
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    run = re.findall(r"entry: make --silent ([\w-]+)", hooks)
    assert run == linters[1].split()


def test_no_benchmark_is_left_out_because_one_before_it_judged_badly():
    recipe = (ROOT / "Makefile").read_text().split("\nbench:")[1].split("\n\n")[0]
    *_, soak, deaths = re.findall(r"-m comm_plan\.benchmarks\.(\w+)", recipe)
    assert (soak, deaths) == ("soak", "deaths")


def test_a_wheel_holds_every_file_that_is_read():
    text = (ROOT / "pyproject.toml").read_text()
    listed = re.search(r"^comm_plan = \[(.*?)\]", text, re.DOTALL | re.MULTILINE)
    patterns = re.findall(r'"([^"]+)"', listed[1])
    shipped = {file for pattern in patterns for file in ROOT.glob(pattern)}
    folders = ("report/page/templates", "plans/schemas", "reproduction/data")
    read = (ROOT / folder for folder in folders)
    assert {file for folder in read for file in folder.iterdir()} <= shipped
