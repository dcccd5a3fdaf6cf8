"""Writes envs/*.yaml, one conda environment per kind of node, from pyproject.toml's extras and envs/lock.txt.

    python envs/make.py           writes the files
    python envs/make.py --check   only compares; tests/unit/test_envs.py runs it too

A file pins what the kind of node needs directly; pip resolves the rest. `bash envs/setup.sh` installs the whole lock.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = {
    "workflow": ((), "the submitting node: planning, hosted models, tables, the browser world"),
    "worlds": (("images", "features", "ocr"), "nodes with local image models, and their scores"),
    "coder": (("coder",), "nodes that serve the visual coder's environment"),
    "train": (("train", "coder"), "nodes that train the visual coder"),
}
"""File name → extras, and what it is for. The workflow's own extras are in every one."""
WORKFLOW_EXTRAS = ("slurm",)
PYTHON = "3.11"


class Disagreement(Exception):
    """pyproject.toml asks for something that the lock does not have."""


def pins() -> dict[str, str]:
    """Package name (normalised, PEP 503) → pinned version in envs/lock.txt."""
    lines = (ROOT / "envs/lock.txt").read_text().splitlines()
    found = (line.split("#")[0].split(";")[0].strip() for line in lines)
    return {normal(name): version for name, _, version in (line.partition("==") for line in found if "==" in line)}


def requirements(extras: tuple[str, ...]) -> list[str]:
    """pyproject.toml's requirements with these extras, without markers, sorted."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chosen = [*project["dependencies"], *(item for extra in extras for item in project["optional-dependencies"][extra])]
    return sorted({item.split(";")[0].strip() for item in chosen if not item.startswith(project["name"])})


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower().strip()


def name_of(requirement: str) -> str:
    """The normalised name that a requirement begins with."""
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    assert match is not None, requirement
    return normal(match[0])


def environment(kind: str) -> str:
    """The file of one kind of node. Raises Disagreement."""
    extras, purpose = KINDS[kind]
    locked = pins()
    names = sorted({name_of(item) for item in requirements((*WORKFLOW_EXTRAS, *extras))})
    if absent := [name for name in names if name not in locked]:
        raise Disagreement(f"envs/lock.txt has no {', '.join(absent)}, which pyproject.toml asks for")
    packages = "".join(f"      - {name}=={locked[name]}\n" for name in names)
    return (
        f"# For {purpose}.\n"
        "# Written by `python envs/make.py` from pyproject.toml and envs/lock.txt; edit those.\n"
        f"name: guiloop-{kind}\n"
        "channels: [conda-forge]\n"
        "dependencies:\n"
        f"  - python={PYTHON}\n"
        "  - pip\n"
        "  - pip:\n"
        f"{packages}"
    )


def main() -> int:
    """See the module."""
    wrong = []
    for kind in KINDS:
        path, text = ROOT / "envs" / f"{kind}.yaml", environment(kind)
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            wrong.append(path.name)
    if wrong:
        print(f"out of date: {', '.join(wrong)}; run: python envs/make.py", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
