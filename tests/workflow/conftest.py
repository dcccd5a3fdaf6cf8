"""The real workflow on small inputs: a working directory of its own, the repository's Snakefile, real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

REPOSITORY = Path(__file__).parents[2]


def write_tasks(root: Path, track: str, count: int, steps: int, side: int = 64) -> Path:
    """A task set of `count` tasks t000 … with noise as first screens; offline ones tap along the diagonal."""
    rows = []
    for number in range(count):
        name = f"t{number:03d}"
        folder = root / f"{track}_data" / name
        folder.mkdir(parents=True)
        noise = numpy.random.default_rng(number).integers(0, 255, (side, side, 3), dtype=numpy.uint8)
        Image.fromarray(noise).save(folder / "initial.png")
        if track == "online":
            milestone = {"id": "m1", "type": ["terminal_success"], "assertion": "It is done."}
            row: dict[str, Any] = {"task_id": name, "instruction": f"Do {name}.", "step_budget": steps}
            rows.append({**row, "milestones": [milestone]})
            continue
        actions = [{"type": "tap", "source_coord": [k, k]} for k in range(steps)]
        lines = [json.dumps({"step_id": k, "semantic_action": action}) for k, action in enumerate(actions)]
        (folder / "reference_trajectory.jsonl").write_text("\n".join(lines))
        rows.append({"sample_id": name, "task_instruction": f"Do {name}.", "n_steps": steps})
    (root / f"{track}_samples.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return root


@dataclass
class Workflow:
    """Runs snakemake in `directory`."""

    directory: Path

    def command(self, *arguments: str, cores: int = 2) -> list[str]:
        snakefile = ["--snakefile", str(REPOSITORY / "Snakefile")]
        return [sys.executable, "-m", "snakemake", "--cores", str(cores), *snakefile, *arguments]

    def run(self, *arguments: str, cores: int = 2, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments, cores=cores),
            cwd=self.directory,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def ok(self, *arguments: str, cores: int = 2, **env: str) -> str:
        """Runs and expects success; returns stdout and stderr together."""
        done = self.run(*arguments, cores=cores, **env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def refused(self, *arguments: str, **env: str) -> str:
        """Runs and expects failure."""
        done = self.run(*arguments, **env)
        assert done.returncode != 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def start(self, *arguments: str, cores: int = 2, **env: str) -> subprocess.Popen[str]:
        """Starts a run as a process group of its own."""
        with open(self.directory / f"run-{time.monotonic_ns()}.log", "w") as log:
            return subprocess.Popen(
                self.command(*arguments, cores=cores),
                cwd=self.directory,
                env={**os.environ, **env},
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def planned(self, *arguments: str) -> dict[str, int]:
        """Jobs per rule that a dry run plans."""
        output = self.ok("-n", *arguments)
        if "Nothing to be done" in output:
            return {}
        table = output.split("Job stats:")[1].split("total")[0].splitlines()
        rows = [line.split() for line in table]
        targets = ("all", "rollouts", "trajectories", "scores")
        return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit() and row[0] not in targets}

    def json(self, path: str) -> Any:
        return json.loads((self.directory / path).read_text())

    def content(self) -> dict[str, bytes]:
        """Every result file without what may differ between equal runs: times and evidence of how they were made."""
        found = {}
        for path in sorted((self.directory / "results/rollouts").rglob("*")):
            if path.is_file() and path.name != "agent_evidence.json":
                data = path.read_bytes()
                if path.suffix == ".json":
                    data = json.dumps(_timeless(json.loads(data)), sort_keys=True).encode()
                found[str(path.relative_to(self.directory))] = data
        return found


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        drop = ("timing", "total_time_s", "evidence", "made_by")
        return {key: _timeless(item) for key, item in value.items() if key not in drop}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def kill_group(process: subprocess.Popen[str]) -> None:
    """kill -9 of a run and all it started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_until(condition, seconds: float = 60) -> None:
    """Polls; fails the test where the condition does not come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def workflow(tmp_path: Path) -> Workflow:
    return Workflow(tmp_path)
