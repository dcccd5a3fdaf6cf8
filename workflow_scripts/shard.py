"""Rule `shard`: one part of a model's tasks, rolled out by a Snakemake of its own on the node of one cluster job.

The inner run has the same Snakefile, working directory and file targets as an unsharded one; only the selection
differs. So a shard is a way of getting files made and leaves no trace in them: another number of shards, or none, finds
the same files and makes nothing again. Its manifest says what the job did; whether a task is complete is always read
from the task's own records. Left out: balancing (every n-th task belongs to one shard), moving tasks between shards.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import slurm
from .chain import first_stale, read_record, step_folder
from .failures import InfrastructureFailure
from .records import SCHEMA_VERSION, read_json, write_bytes, write_json

if TYPE_CHECKING:
    from .config import Config
    from .plan import Row
    from .tasks import Task
    from .worlds.rows import WorldRow

SHARDS = Path("results/shards")
LOGS = Path("results/logs/shards")
REPORT_VARIABLE = "GUILOOP_SHARD_REPORT"
"""Environment variable naming the file in which an inner run says what stopped on infrastructure."""
PARENT_VARIABLE = "GUILOOP_SHARD_PARENT"
"""Environment variable naming the process with which an inner run ends."""
POLL_S = 0.2
LOOK_AROUND_S = 55.0
ASK_LIMIT_S = 20.0
"""How often a job asks how much of its time is left."""


@dataclass(frozen=True)
class Shard:
    """Part `index` (from 1) of `count` of the tasks of all `rows`, which are one model's."""

    model: str
    index: int
    count: int
    rows: tuple[Row, ...]

    @property
    def manifest(self) -> Path:
        """``results/shards/{model}/{count}/{index}.json``."""
        return SHARDS / self.model / str(self.count) / f"{self.index}.json"

    @property
    def failed(self) -> Path:
        """What stands in place of the manifest after a shard that did not finish."""
        return self.manifest.with_suffix(".failed.json")

    def log(self, suffix: str) -> Path:
        """A file of this shard in the folder of logs."""
        return LOGS / self.model / str(self.count) / f"{self.index}{suffix}"

    def tasks(self) -> Iterator[tuple[Row, Task]]:
        """Every (row, task) of the shard; the same division as ``select(…, shard=…)`` makes."""
        for row in self.rows:
            for task in row.tasks[self.index - 1 :: self.count]:
                yield row, task

    def trouble(self) -> list[str]:
        """What the shard's last job said if it did not finish."""
        if not self.failed.is_file():
            return []
        record = read_json(self.failed)
        head = f"shard {record['shard']} of {self.model}: {record['jobs_left']} jobs left, log {self.log('.run.log')}"
        reasons = [f"{item['target']}\n    {item['code']}: {item['message']}" for item in record["failed"][:10]]
        return [head, *(f"  {reason}" for reason in reasons)]


class ShardProgress:
    """Steps and tasks done so far, read from the files that the shards' jobs make.

    Args:
        shards: those at work.
        steps, tasks: done before, in all.

    Attributes:
        look_around: called about once a minute.
    """

    def __init__(self, shards: Sequence[Shard], steps: int, tasks: int) -> None:
        self._files = [(row.folder / task.task_id, task.step_budget) for shard in shards for row, task in shard.tasks()]
        self._since = time.time()
        done = [position for shard in shards for position in _positions(shard).values()]
        budgets = [budget for _, budget in self._files]
        left_steps = [min(budget, left // 2) for budget, left in zip(budgets, done, strict=True)]
        self._looked = time.monotonic()
        self.look_around: Callable[[], None] = lambda: None
        self._steps, self._tasks = steps - sum(left_steps), tasks - sum(left > 0 for left in done)

    def __call__(self) -> tuple[int, int]:
        """Done now: what was done at the start and every record written since."""
        if time.monotonic() - self._looked > LOOK_AROUND_S:
            self._looked = time.monotonic()
            self.look_around()
        steps = tasks = 0
        for folder, budget in self._files:
            steps += sum(self._new(step_folder(folder, step) / "prediction.json") for step in range(budget))
            tasks += self._new(folder / "trajectory.json")
        return self._steps + steps, self._tasks + tasks

    def _new(self, path: Path) -> bool:
        try:
            return path.stat().st_mtime >= self._since
        except OSError:
            return False


def is_served_elsewhere(row: WorldRow) -> bool:
    """Whether a model answers at an endpoint, so that its steps need no node of their own."""
    return getattr(row, "endpoint", None) is not None


def needs_gpu(row: WorldRow) -> bool:
    """Whether a model runs on a GPU of the node that rolls it out."""
    return getattr(row, "device", "cpu") != "cpu" and not is_served_elsewhere(row)


def count_of(config: Config, model: str, rows: Sequence[Row]) -> int:
    """Into how many jobs a model's work is split; 0 where its steps run in the process that plans.

    No shard is empty: a model has at most as many as its smallest row has tasks.
    """
    if config.shards is None or not rows or is_served_elsewhere(config.world_row(model)):
        return 0
    return min(config.shards, *(len(row.tasks) for row in rows))


def main(shard: Shard, config: Config, command: Sequence[str], output: Path, stopping: Callable[[], bool]) -> str:
    """Rolls a shard's tasks out and makes `output`, its manifest; returns a summary.

    Args:
        config: the outer run's configuration.
        command: the inner Snakemake up to its configuration and target.
        stopping: whether this job has been told to end; then steps in flight may still finish for a while.

    Raises InfrastructureFailure where anything of the shard is not done; what is done is kept.
    """
    started = time.time()
    before = _positions(shard)
    settings = shard.log(".config.json")
    fields = {"model": [shard.model], "shards": None, "shard": f"{shard.index}/{shard.count}"}
    write_json(settings, {**config.model_dump(mode="json"), **fields})
    report = shard.log(".report.json")
    report.unlink(missing_ok=True)
    text = shard.log(".run.log")
    inner = _Inner([*command, "--configfile", str(settings), "--", "trajectories"], text, report)
    limited = inner.wait(stopping, config.slurm.warn_s)
    after = _positions(shard)
    done, left = sum(before.values()) - sum(after.values()), sum(after.values())
    record: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "record": "shard",
        "model": shard.model,
        "settings": [row.setting for row in shard.rows],
        "shard": f"{shard.index}/{shard.count}",
        "tasks": len(after),
        "tasks_complete": sum(left == 0 for left in after.values()),
        "jobs_done": done,
        "jobs_left": left,
        "ends": _ends(shard),
        "failed": read_json(report)["failed"] if report.is_file() else [],
        "seconds": round(time.time() - started, 1),
        "node": socket.gethostname(),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
    if not left:
        write_json(output, record)
        shard.failed.unlink(missing_ok=True)
        return f"{len(after)} tasks, {done} jobs in {record['seconds']:.0f} s"
    write_json(shard.failed, record)
    # Back into the queue under the same number: the run that submitted it goes on waiting. Not without progress, which
    # would repeat for ever.
    requeued = limited and done > 0 and slurm.requeue()
    raise _unfinished(shard, record, inner.status, "requeued" if requeued else "stopped" if inner.told else None, text)


class _Inner:
    """The inner Snakemake; its output goes to `log`.

    A job is not warned by a signal (sbatch --signal): SLURM sends it to every process of the step, browser and model
    server included, and ends a step that got SIGTERM within seconds. Here only Snakemake is told, so steps can finish.
    """

    def __init__(self, command: Sequence[str], log: Path, report: Path) -> None:
        environment = {**os.environ, REPORT_VARIABLE: str(report), PARENT_VARIABLE: str(os.getpid())}
        environment.pop("SNAKEMAKE_PROFILE", None)  # the profile of the outer run: it would queue jobs again
        log.parent.mkdir(parents=True, exist_ok=True)
        self.told = False
        with open(log, "ab") as stream:
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, env=environment
            )

    @property
    def status(self) -> int:
        """Exit status; negative: the signal that killed it."""
        return int(self._child.returncode)

    def wait(self, stopping: Callable[[], bool], warn_s: float) -> bool:
        """Waits for its end; tells it to finish when `stopping` or `warn_s` seconds before the job's time limit, and
        kills it when three quarters of these have gone. Returns whether the limit was the reason."""
        limited, asked, kill_at = False, -ASK_LIMIT_S, float("inf")
        while self._child.poll() is None:
            now = time.monotonic()
            if not self.told and now - asked >= ASK_LIMIT_S:
                asked, left = now, slurm.seconds_left()
                limited = left is not None and left <= warn_s + ASK_LIMIT_S / 2
            if not self.told and (limited or stopping()):
                self.told, kill_at = True, now + 0.75 * warn_s
                self._child.terminate()  # Snakemake starts no further step and waits for those in flight
            if now > kill_at:
                _kill(self._child.pid)
            time.sleep(POLL_S)
        return limited


def _kill(pid: int) -> None:
    """Kills a process and all below it."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        for process in [top, *top.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _positions(shard: Shard) -> dict[str, int]:
    """Jobs left of every task, by its folder."""
    left = {}
    for row, task in shard.tasks():
        position = first_stale(row, task)
        left[str(row.folder / task.task_id)] = 0 if position is None else 2 * task.step_budget + 1 - position
    return left


def _ends(shard: Shard) -> dict[str, int]:
    """How the complete episodes ended."""
    ends: Counter[str] = Counter()
    for row, task in shard.tasks():
        if first_stale(row, task) is None:
            record = read_record(row.folder / task.task_id / "trajectory.json")
            ends[record["error"] or record["end_reason"]] += 1
    return dict(ends)


def _unfinished(
    shard: Shard, record: Mapping[str, Any], status: int, stopped: str | None, log: Path
) -> InfrastructureFailure:
    """The failure of a shard that has something left, with its reasons."""
    done = f"{record['tasks_complete']} of {record['tasks']} tasks complete, {record['jobs_left']} jobs left"
    name = f"shard {record['shard']} of {shard.model}"
    if stopped:
        why = {"requeued": "is near its time limit and back in the queue", "stopped": "was told to end"}[stopped]
        return InfrastructureFailure(f"shard_{stopped}", f"{name} {why}: {done}; its next job resumes there")
    lines = [f"{item['target']}: {item['code']}: {item['message']}" for item in record["failed"]]
    if not lines:
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        lines = [f"its Snakemake ended without a report ({how}); the end of {log}:", *_tail(log)]
    return InfrastructureFailure("shard_unfinished", "\n  ".join([f"{name}: {done}", *lines[:20]]), log=str(log))


def _tail(log: Path, lines: int = 12) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines()[-lines:]
    except OSError:
        return []


# --- in the inner run -------------------------------------------------------------------------------------------------


def report_failures(failed: Sequence[dict[str, Any]]) -> None:
    """Says what stopped on infrastructure, if this process is a shard's inner run."""
    if path := os.environ.get(REPORT_VARIABLE):
        write_bytes(path, json.dumps({"failed": list(failed)}, ensure_ascii=False).encode())


def end_with_parent() -> None:
    """Tells this process to end when the one that started it is gone, if it is a shard's inner run.

    A cluster without cgroups can lose the children of a cancelled job; they must not go on beside its successor.
    """
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def inner_command(snakefile: str, repository: str, cores: int) -> list[str]:
    """The inner Snakemake: local, with the default profile, on this node's share of cores."""
    profile = str(Path(repository) / "profiles/default")
    base = [sys.executable, "-m", "snakemake", "--snakefile", snakefile, "--workflow-profile", profile]
    return [*base, "--cores", str(cores)]
