"""The training stage where it meets Snakemake: answers the questions of rules/train.smk and export.smk.

A finished iteration is never made again, so what lies behind the last one is no part of the plan: the chain of jobs
begins at the last finished iteration, whatever file times say, and is at most `train_rows.MAX_DEPTH` long. Another
configuration over a run's folder is refused before a job starts, not retrained.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

from . import train_rows, worker
from .failures import InfrastructureFailure, InvalidInput
from .identity import digest
from .run import Run
from .train_rows import EXPORT, MANIFEST, TRAIN, RunRow, finished, iteration_folder

TRAIN_RULES = {"warm_start", "update", "collect", "episode", "evaluate", "export_coder"}
"""Rules whose jobs load the base model."""


class TrainRun:
    """See the module. `run` is the invocation it belongs to."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._rows: dict[str, RunRow] = {}
        for name in run.config.run or []:
            self.row(name)
        most = max((row.collectors for row in self._rows.values()), default=0)
        # On one machine a device trains one run at a time; on a cluster every job has its own.
        run.workflow.global_resources["training"] = 1 + most
        run.checks.append(self.preflight)
        run.summaries.append(self.summary)

    def row(self, name: str) -> RunRow:
        """The typed row of a run. Raises InvalidInput."""
        if name not in self._rows:
            self._rows[name] = self.run.config.train_row(name)
        return self._rows[name]

    @cached_property
    def names(self) -> list[str]:
        """The runs asked for. Raises InvalidInput if none is."""
        if not self.run.config.run:
            known = ", ".join(self.run.config.runs) or "none yet: --configfile config/examples/train_9b.yaml"
            example = next(iter(self.run.config.runs), "NAME")
            raise InvalidInput("config", "run", f"a key of `runs` ({known})", "nothing", f"--config run={example}")
        return list(self.run.config.run)

    # --- targets and inputs -------------------------------------------------------------------------------------------

    def train_targets(self) -> list[str]:
        """What training a run makes: its evaluation and curves, and what its collectors have to say."""
        targets = [str(TRAIN / name / file) for name in self.names for file in ("evaluation.json", "curves.png")]
        for name in self.names:
            row, done = self.row(name), max(finished(TRAIN / name), default=-1)
            targets += [
                str(TRAIN / name / "collectors" / f"to_{end:05d}_{number}.json")
                for end in row.ends()
                if end > done
                for number in range(1, row.collectors + 1)
            ]
        return targets

    def export_targets(self) -> list[str]:
        return [str(EXPORT / name / "README.md") for name in self.names]

    def before(self, w: Any) -> list[str]:
        """Inputs of update and collect: the job before this one; none where its iterations are finished."""
        row, iteration = self._iteration(w)
        self.run.trust_content()
        before = row.end_before(iteration)
        if before is None:
            return self._beginning(w.run)
        return self._unless_finished(w.run, before)

    def before_episode(self, w: Any) -> list[str]:
        """Input of episode: the state before its iteration."""
        _, iteration = self._iteration(w)
        if iteration == 0:
            raise InvalidInput("target", w.run, "an iteration from 1 on (0 has no episodes)", 0, "iteration_00001")
        self.run.trust_content()
        return self._unless_finished(w.run, iteration - 1)

    def base_of_warm_start(self, w: Any) -> list[str]:
        return self._base(self.row(w.run))

    def last(self, w: Any) -> str:
        """Input of evaluate, curves and export: the end of the run."""
        return str(iteration_folder(TRAIN / w.run, self.row(w.run).total) / MANIFEST)

    def update_identity(self, w: Any) -> str:
        """Of the job's own iterations: a schedule that grows changes nothing behind it."""
        from .coder.train.schedule import plan

        row, iteration = self._iteration(w)
        config = row.train(TRAIN / w.run)
        plans = [plan(config, i) for i in range((row.end_before(iteration) or 0) + 1, iteration + 1)]
        phases = [[p.phase, p.roles, [[g.task_id, g.seed] for g in p.groups]] for p in plans]
        return digest([config.identity(), row.reward, phases])

    def warm_start_identity(self, w: Any) -> str:
        return self._warm_row(w.run).warm_start_identity()

    def evaluation_identity(self, w: Any) -> str:
        return self.row(w.run).evaluation_identity()

    def export_identity(self, w: Any) -> str:
        return digest(self.row(w.run).export_iteration)

    def slot(self) -> int:
        """Units of the resource `training` that a job takes: none where each job has a machine of its own."""
        return 0 if self.run._submits() else 1

    def resource(self, name: str) -> str | int | None:
        """A resource of a job on a cluster, under the executor plugin's name; None leaves it to the cluster."""
        return self.run.config.slurm.resources("train")[name]

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def warm_start(self, w: Any, output: Any, log: Any) -> None:
        self._warm_row(w.run)
        self._work("warm_start", w, output, log)

    def update(self, w: Any, output: Any, log: Any) -> None:
        self._work("update", w, output, log, "--until", str(int(w.iteration)))

    def collect(self, w: Any, output: Any, log: Any) -> None:
        self._work("collect", w, output, log, "--until", str(int(w.iteration)), "--collector", w.collector)

    def episode(self, w: Any, output: Any, log: Any) -> None:
        place = ("--iteration", str(int(w.iteration)), "--group", str(int(w.group)), "--member", str(int(w.member)))
        self._work("episode", w, output, log, *place)

    def evaluate(self, w: Any, output: Any, log: Any) -> None:
        self._work("evaluate", w, output, log)

    def curves(self, w: Any, output: Any, log: Any) -> None:
        self._work("curves", w, output, log)

    def export_coder(self, w: Any, output: Any, log: Any) -> None:
        self._work("export_coder", w, output, log, str(Path(output[0]).parent))

    def gallery(self, output: Any, log: Any) -> None:
        self._process("coder.gallery", [output[0]], output[0], log)

    def _work(self, module: str, w: Any, output: Any, log: Any, *arguments: str) -> None:
        folder = TRAIN / w.run

        def prepare() -> None:
            train_rows.resolve(w.run, self.row(w.run), folder)

        self._process(module, [str(folder), *arguments], output[0], log, prepare)

    def _process(self, module: str, arguments: list[str], target: str, log: Any, prepare: Any = lambda: None) -> None:
        def work() -> str:
            prepare()
            name = f"workflow_scripts.{module}"
            repository, warn_s = str(self.run.workflow.basedir), float(self.run.config.slurm.warn_s)
            text = Path(log[0]).with_suffix(".run.log")
            said = worker.run(name, arguments, repository, text, self.run.stopping, warn_s)
            if not Path(target).is_file():
                raise InfrastructureFailure(
                    "nothing_made", f"{name} ended well and did not make {target}", log=str(text)
                )
            return said

        self.run.job(target, log[0], work)

    # --- before the first job and after the last ----------------------------------------------------------------------

    def preflight(self, rules: set[str]) -> list[str]:
        """What keeps the runs from being trained here; asks a process that imports torch (some seconds)."""
        if not rules & TRAIN_RULES:
            return []
        # A scheduler's warning: without a handler it would end this process at once.
        signal.signal(signal.SIGUSR1, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        faults: list[str] = []
        for name, row in self._rows.items():
            try:
                train_rows.resolve(name, row, TRAIN / name)
            except InvalidInput as error:
                faults.append(str(error))
                continue
            faults += [f"runs.{name}: {fault}" for fault in self._faults(name)]
        return faults

    def _faults(self, name: str) -> list[str]:
        repository = str(self.run.workflow.basedir)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([repository, os.environ.get("PYTHONPATH", "")])}
        elsewhere = ["--elsewhere"] if self.run._submits() else []
        command = [sys.executable, "-m", "workflow_scripts.train_check", str(TRAIN / name), *elsewhere]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            return [f"the check of the run failed:\n{done.stderr.strip()}"]
        faults: list[str] = json.loads(done.stdout.strip().splitlines()[-1])
        return faults

    def summary(self, rules: set[str]) -> list[str]:
        """What there is of each run, where the invocation trained."""
        lines = ["results/coder/gallery.html"] if "gallery" in rules else []
        for name, row in self._rows.items():
            if not rules & (TRAIN_RULES | {"curves"}):
                continue
            done = finished(TRAIN / name)
            lines.append(f"{name}: {max(done, default=0)} of {row.total} iterations, log {TRAIN / name / 'log.csv'}")
            lines += [f"  {path}" for path in (TRAIN / name / "evaluation.json", EXPORT / name) if path.exists()]
        return lines

    # --- inside -------------------------------------------------------------------------------------------------------

    def _iteration(self, w: Any) -> tuple[RunRow, int]:
        row, iteration = self.row(w.run), int(w.iteration)
        if iteration > row.total:
            expected = f"an iteration of the schedule (1 … {row.total})"
            raise InvalidInput("target", w.run, expected, iteration, f"iteration_{row.total:05d}")
        return row, iteration

    def _warm_row(self, name: str) -> RunRow:
        row = self.row(name)
        if row.warm_start is None:
            raise InvalidInput("config", f"runs.{name}.warm_start", "a block", "null", "warm_start: {steps: 200}")
        return row

    def _unless_finished(self, name: str, iteration: int) -> list[str]:
        path = iteration_folder(TRAIN / name, iteration) / MANIFEST
        return [] if path.is_file() else [str(path)]

    def _beginning(self, name: str) -> list[str]:
        """What the first job needs: this run's warm start, or a base that another run's warm start makes."""
        row = self.row(name)
        if (iteration_folder(TRAIN / name, 0) / MANIFEST).is_file():
            return []
        if row.warm_start is not None:
            return [str(TRAIN / name / "warm_start" / "log.json")]
        return self._base(row)

    def _base(self, row: RunRow) -> list[str]:
        parts = Path(row.model.base).parts
        if len(parts) == 5 and parts[:2] == TRAIN.parts and parts[3:] == ("warm_start", "base"):
            self._warm_row(parts[2])
            return [str(TRAIN / parts[2] / "warm_start" / "log.json")]
        return []
