"""The house's own rules: formatting, lint, types, and that README, CI and setup say the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], cwd=REPOSITORY, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("snakefmt", "--check", "Snakefile", "rules"),
        ("snakemake", "--lint"),
        ("mypy",),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_tools_are_content(command):
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ci_runs_the_test_command_of_the_readme():
    readme = (REPOSITORY / "README.md").read_text()
    commands = [line for block in re.findall(r"```sh\n(.*?)```", readme, re.DOTALL) for line in block.splitlines()]
    test = next(line for line in commands if "pytest" in line)
    assert test in (REPOSITORY / ".ci/run").read_text().splitlines()


def test_every_rule_has_a_module_of_its_name():
    names = {
        name
        for path in (REPOSITORY / "rules").glob("*.smk")
        for name in re.findall(r"^(?:rule|checkpoint) (\w+):", path.read_text(), re.MULTILINE)
    }
    package = REPOSITORY / "workflow_scripts"
    modules = {path.stem for path in package.rglob("*.py")}
    modules |= {path.parent.name for path in package.rglob("__init__.py")}
    # One call of what `judge` makes, and one row's pages of what `report` makes: each lives with it.
    assert names - modules <= {"judge_call", "report_row"}


def test_the_lock_names_no_address():
    lines = (REPOSITORY / "envs/lock.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line) for line in lines)
