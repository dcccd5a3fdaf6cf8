"""pyproject.toml, envs/lock.txt and envs/*.yaml say the same."""

import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def locked() -> dict[str, str]:
    lines = (ROOT / "envs/lock.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]
    return {pin.name.lower().replace("_", "-"): next(iter(pin.specifier)).version for pin in pins}


def test_the_lock_satisfies_every_requirement():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(item for items in project["optional-dependencies"].values() for item in items)]
    pins = locked()
    for requirement in map(Requirement, asked):
        if requirement.name != project["name"]:
            name = requirement.name.lower().replace("_", "-")
            assert name in pins, f"envs/lock.txt has no {requirement.name}"
            assert requirement.specifier.contains(pins[name], prereleases=True), f"{requirement} and {pins[name]}"


def test_environment_files_are_up_to_date():
    done = subprocess.run([sys.executable, ROOT / "envs/make.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
