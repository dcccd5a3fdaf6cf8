"""One invocation of the workflow: where the domain meets Snakemake.

Answers the rules' questions (inputs, identities), decides which inputs count as unchanged, runs a job's work with its
log, and does what is due before the first job and after the last. Only this module and `rules/` know Snakemake. It
uses three names that Snakemake does not promise to keep: ``workflow.dag.forcefiles``, ``scheduler.job_rate_limiter``
and the local executor's thread pool; the version is pinned, and tests/workflow fails when one of them is gone.
"""

from __future__ import annotations

import json
import logging
import shlex
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from snakemake.io import ancient
from snakemake.logging import logger

from . import act, estimate, predict, preflight, rollout_results, shard, slurm, trajectory
from .chain import (
    act_identity,
    first_stale,
    position_name,
    predict_identity,
    read_record,
    results_hold,
    step_folder,
    trajectory_identity,
)
from .config import Config
from .failures import Failure, InfrastructureFailure, InvalidInput
from .identity import digest
from .locks import TargetLocks
from .plan import ROLLOUTS, Row, Rows
from .progress import Progress
from .records import read_json, write_bytes, write_json
from .tasks import Task

LOGS = Path("results/logs")
STEP_RULES = ("act", "predict", "trajectory")
READING_RULES = ("rollout_results", "measure", "judge")
"""Rules whose inputs are trajectories, and which decide by content whether they must run."""
CONTENT_RULES = (*READING_RULES, "update", "collect", "episode")
"""Rules that run for what is missing or stale by content, never because they were planned with other inputs before."""
CHECK_RULES = {"preflight", "plan"}
STEP_FILES = ("action.json", "prediction.json", "trajectory.json")


class Run:
    """See the module. `workflow` is Snakemake's workflow object."""

    def __init__(self, config: Config, workflow: Any) -> None:
        self.config = config
        self.workflow = workflow
        # The default task set lies beside the Snakefile, also when the run's directory is another one.
        beside = Path(str(workflow.basedir)) / config.tasks
        here = Path(config.tasks).exists() or not beside.exists()
        self.rows = Rows(config, Path(config.tasks) if here else beside)
        self.progress: Progress | None = None
        self.checks: list[Callable[[set[str]], list[str]]] = []
        """Preflights of other stages: called with the names of the rules that are going to run."""
        self.summaries: list[Callable[[set[str]], list[str]]] = []
        """What other stages have to say at the end and in the progress line: called with the rules that run."""
        self._planned: set[str] = set()
        self.locks = TargetLocks(".snakemake/guiloop.locks")
        self._stale: dict[Path, int | None] = {}
        self._found: dict[Path, int | None] = {}
        self._leftovers: dict[str, list[str]] = {}
        # A waiting job claims no core, so something else must bound how many wait at a time.
        workflow.global_resources["tasks_in_flight"] = config.tasks_in_flight

    # --- what the rules ask -------------------------------------------------------------------------------------------

    def rollout_targets(self) -> list[str]:
        return [str(row.folder / "rollout_results.json") for row in self.rows]

    def trajectory_targets(self) -> list[str]:
        """All trajectories: what a shard's inner run makes."""
        return [str(row.folder / task.task_id / "trajectory.json") for row in self.rows for task in row.tasks]

    def screen_before(self, w: Any) -> Any:
        row, task, step = self._step(w)
        if step == 0:
            return ancient(str(task.image))
        before = step_folder(row.folder / task.task_id, step - 1) / "prediction.json"
        return self._link(row, task, before, 2 * step)

    def action_before(self, w: Any) -> str:
        row, task, step = self._step(w)
        return self._link(row, task, step_folder(row.folder / task.task_id, step) / "action.json", 2 * step + 1)

    def last_prediction(self, w: Any) -> str:
        row, task = self._task(w)
        last = step_folder(row.folder / task.task_id, task.step_budget - 1) / "prediction.json"
        return self._link(row, task, last, 2 * task.step_budget)

    def trajectories(self, w: Any) -> list[str]:
        """The row's trajectories, or the manifests of the shard jobs that are going to make them."""
        row = self.rows.get(w.model, w.setting)
        files = [str(row.folder / task.task_id / "trajectory.json") for task in row.tasks]
        self.trust_content()
        shards = [str(part.manifest) for part in self._open_shards(row)]
        if shards or self.config.shards is not None:
            self._refuse_forced_steps()
        if shards:
            # A manifest that lies there hides nothing: its job runs whenever a task of its shard is not complete.
            self.workflow.dag.forcefiles.update(shards)
            return shards
        if all(self._first_stale(row, task) is None for task in row.tasks):
            if results_hold(row):
                return [ancient(file) for file in files]
            self.workflow.dag.forcefiles.add(str(row.folder / "rollout_results.json"))
        return files

    def stale(self, row: Row, task: Task) -> bool:
        """Whether anything of a task's rollout must be made (again)."""
        return self._first_stale(row, task) is not None

    def trajectory_input(self, row: Row, task: Task) -> str:
        """What must be there before a task's trajectory can be read, where a shard job makes it: the whole row."""
        if self._open_shards(row):
            return str(row.folder / "rollout_results.json")
        return str(row.folder / task.task_id / "trajectory.json")

    def act_identity(self, w: Any) -> str:
        return act_identity(*self._step(w))

    def predict_identity(self, w: Any) -> str:
        return predict_identity(*self._task(w))

    def trajectory_identity(self, w: Any) -> str:
        return trajectory_identity(*self._task(w))

    def row_identity(self, w: Any) -> str:
        return digest(self.rows.get(w.model, w.setting).run)

    def _task(self, w: Any) -> tuple[Row, Task]:
        row = self.rows.get(w.model, w.setting)
        return row, row.task(w.task)

    def _step(self, w: Any) -> tuple[Row, Task, int]:
        row, task = self._task(w)
        step = int(w.step)
        if step >= task.step_budget:
            raise InvalidInput(
                "target",
                w.task,
                f"a step from 000 to {task.step_budget - 1:03d}",
                w.step,
                f"step_{task.step_budget - 1:03d}",
            )
        return row, task, step

    # --- which jobs must run ------------------------------------------------------------------------------------------

    def _link(self, row: Row, task: Task, file: Path, position: int) -> str:
        """An input inside a chain: `ancient` (its file time ignored) while everything up to `position` holds."""
        stale = self._first_stale(row, task)
        return str(file) if stale is not None and position >= stale else ancient(str(file))

    def _first_stale(self, row: Row, task: Task) -> int | None:
        """Position of the task's first job that must run; tells Snakemake to run it, whatever the file times say.

        From there on inputs are ordinary, so Snakemake runs all that follows in this task, and nothing else.
        """
        folder = row.folder / task.task_id
        if folder not in self._stale:
            found = self._first_missing(row, task)
            forced = self._forced(row, task)
            position = min((p for p in (found, forced) if p is not None), default=None)
            if position is not None:
                self.workflow.dag.forcefiles.add(str(folder / position_name(task, position)))
            self._stale[folder] = position
        return self._stale[folder]

    def _first_missing(self, row: Row, task: Task) -> int | None:
        """`first_stale`, asked once per run."""
        folder = row.folder / task.task_id
        if folder not in self._found:
            self._found[folder] = first_stale(row, task)
        return self._found[folder]

    def _forced(self, row: Row, task: Task) -> int | None:
        """The first position that ``--forcerun`` names, by rule or by file."""
        dag = self.workflow.dag
        rules = {rule.name for rule in dag.forcerules}
        if "act" in rules:
            return 0
        if "predict" in rules:
            return 1
        folder = f"{row.folder / task.task_id}/"
        files = {file.removeprefix(folder) for file in map(str, dag.forcefiles) if file.startswith(folder)}
        if files:
            for position in range(2 * task.step_budget):
                if position_name(task, position) in files:
                    return position
        return 2 * task.step_budget if "trajectory.json" in files or "trajectory" in rules else None

    # --- shards -------------------------------------------------------------------------------------------------------

    def _shard(self, model: str, index: int, count: int) -> shard.Shard:
        return shard.Shard(model, index, count, tuple(row for row in self.rows if row.model == model))

    def _open_shards(self, row: Row) -> list[shard.Shard]:
        """The row's shards that have a task of it to do; none where its steps are planned one by one."""
        mine = [other for other in self.rows if other.model == row.model]
        count = shard.count_of(self.config, row.model, mine) if row in mine else 0
        todo = {
            position % count + 1
            for position, task in enumerate(row.tasks)
            if count and self._first_missing(row, task) is not None
        }
        return [self._shard(row.model, index, count) for index in sorted(todo)]

    def _refuse_forced_steps(self) -> None:
        forced = map(str, self.workflow.dag_settings.forcerun)
        steps = [name for name in forced if name in STEP_RULES or Path(name).name in STEP_FILES]
        if steps:
            raise InvalidInput(
                "--forcerun",
                steps[0],
                "no step or task: a run with shards plans whole shards",
                steps[0],
                "shards=null, or delete the files that are to be made again",
            )

    def trust_content(self) -> None:
        """Keeps Snakemake from rerunning CONTENT_RULES because an earlier run recorded other inputs.

        With shards what reads trajectories waits for manifests, without them for trajectories; an update waits for the
        one before only where that is not done. What holds is decided by content.
        """
        persistence = self.workflow.persistence
        changed = type(persistence).input_changed

        def input_changed(job: Any, file: Any = None) -> Any:
            return [] if job.rule.name in CONTENT_RULES else changed(persistence, job, file)

        persistence.input_changed = input_changed

    def shard_resource(self, w: Any, name: str) -> str | int | None:
        """A resource of a shard's job, under the executor plugin's name; None leaves it to the cluster."""
        after = self._running_shards(w.model) if name == "slurm_extra" else []
        return self.config.slurm.resources(self._shard_kind(w.model), after)[name]

    def _shard_kind(self, model: str) -> slurm.Kind:
        return "gpu_shard" if shard.needs_gpu(self.config.world_row(model)) else "cpu_shard"

    def _running_shards(self, model: str) -> list[str]:
        """Cluster jobs of this model that a dead run left behind; new ones start after their end and resume there."""
        if not self._submits():
            return []
        if model not in self._leftovers:
            self._leftovers[model] = slurm.leftovers(Path.cwd(), f"rule_shard_wildcards_{model}_")
        return self._leftovers[model]

    def _submits(self) -> bool:
        """Whether this process hands jobs to SLURM."""
        executor = self.workflow.executor_plugin
        return bool(self.workflow.is_main_process and executor is not None and executor.name == "slurm")

    def shard(self, w: Any, output: Any, log: Any) -> None:
        part = self._shard(w.model, int(w.shard), int(w.shards))
        cores = self.config.slurm.job(self._shard_kind(w.model)).cpus or 1
        command = shard.inner_command(str(self.workflow.main_snakefile), str(self.workflow.basedir), cores)

        self.job(output[0], log[0], lambda: shard.main(part, self.config, command, Path(output[0]), self.stopping))

    def stopping(self) -> bool:
        """Whether this process was told to end and waits for its jobs."""
        return self.workflow.scheduler._user_kill is not None

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def act(self, w: Any, output: Any, log: Any) -> None:
        row, task, step = self._step(w)
        self.job(output[0], log[0], lambda: act.main(row, task, step, Path(output[0])))

    def predict(self, w: Any, output: Any, log: Any) -> None:
        row, task, step = self._step(w)
        self.job(output[0], log[0], lambda: predict.main(row, task, step, Path(output[0])))
        if self.progress:
            record = read_record(Path(output[0]))
            self.progress.step_done(record["failure"]["code"] if record["status"] == "failed" else None)

    def trajectory(self, w: Any, output: Any, log: Any) -> None:
        row, task = self._task(w)
        reason = self.job(output[0], log[0], lambda: trajectory.main(row, task, Path(output[0])))
        if self.progress:
            self.progress.task_done(f"{row.model}/{row.setting}/{task.task_id}", reason)

    def rollout_results(self, w: Any, output: Any, log: Any) -> None:
        row = self.rows.get(w.model, w.setting)
        self.job(output[0], log[0], lambda: rollout_results.main(row, Path(output[0])))

    def job(self, target: str, log: str, work: Callable[[], str]) -> str:
        """Runs a job's work; what goes wrong is written to its log and counted, then raised for Snakemake."""
        name = target.removeprefix(f"{ROLLOUTS}/")
        if self.progress is None:  # a job in a process of its own, without the default profile
            return work()
        try:
            with self.progress.running(name):
                status = work()
        except Exception as error:
            failure = error if isinstance(error, Failure) else None
            code = failure.code if failure else type(error).__name__
            message = failure.message if failure else str(error)
            self.progress.job_failed(target, code, message)
            text = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {target}\n{code}: {message}\n"
            if failure and failure.detail:
                text += json.dumps(failure.detail, indent=1, ensure_ascii=False, default=str) + "\n"
            if failure is None:
                text += traceback.format_exc()
            try:
                write_bytes(log, text.encode())
            except InfrastructureFailure as full:  # the disk that failed the job may fail its log as well
                print(f"{text}(the log could not be written: {full.message})", file=sys.stderr)
            raise
        self.progress.job_mended(target)
        return status

    # --- before the first job and after the last ----------------------------------------------------------------------

    def start(self) -> None:
        """Refuses what cannot succeed, before anything is spent. Raises InvalidInput or InfrastructureFailure."""
        jobs = list(self.workflow.dag.needrun_jobs())
        self._planned = {job.rule.name for job in jobs}
        if self._planned <= CHECK_RULES:
            return
        write_bytes(LOGS / ".writable", b"")  # a full or read-only results folder shows here, not after an hour
        self.locks.acquire(sorted({_lock_name(str(file)) for job in jobs for file in job.output}))
        rollouts = [job for job in jobs if job.rule.name in STEP_RULES]
        parts = [
            self._shard(job.wildcards.model, int(job.wildcards.shard), int(job.wildcards.shards))
            for job in jobs
            if job.rule.name == "shard"
        ]
        if both := {job.wildcards.model for job in rollouts} & {part.model for part in parts}:
            model = sorted(both)[0]
            expected = f"steps of {model} either in shards or one by one, not both in one run"
            raise InvalidInput("target", model, expected, "both", "shards=null, or leave the single steps out")
        rows = {id(row): row for row in (self.rows.get(j.wildcards.model, j.wildcards.setting) for j in rollouts)}
        work = {id(row): row for row in [*rows.values(), *(row for part in parts for row in part.rows)]}
        for row in work.values():
            self._refuse_other_track(row)
        problems = self._refused_by_slurm(jobs) if self._submits() else []
        for row in rows.values():
            problems += preflight.local_faults(row)
        estimates = [(row, self._estimate(row)) for row in self.rows if id(row) in work]
        problems += preflight.machine_faults(sum(item.bytes for _, item in estimates), ROLLOUTS)
        for check in self.checks:
            problems += check(self._planned)
        if problems:
            listed = "\n  - ".join(dict.fromkeys(problems))
            raise InfrastructureFailure("preflight", f"this run cannot succeed here:\n  - {listed}")
        for row in work.values():
            self._claim(row)
        if self.config.shard is None:
            for row, item in estimates:
                estimate.save(item, row)
        self._tune_scheduler()
        names = Counter(job.rule.name for job in rollouts)
        steps = sum(task.step_budget for row in self.rows for task in row.tasks)
        tasks = sum(len(row.tasks) for row in self.rows)
        steps, tasks = max(steps, names["predict"]), max(tasks, names["trajectory"])
        if self._only_other_stages():
            steps = tasks = 0
        name = f"progress_{self.config.shard.replace('/', '_of_')}.log" if self.config.shard else "progress.log"
        done = steps - names["predict"], tasks - names["trajectory"]
        observe = shard.ShardProgress(parts, *done) if parts else None
        done = observe() if observe else done
        if observe and self._submits():
            observe.look_around = self._say_what_is_stuck
        self.progress = Progress(LOGS / name, steps, done[0], tasks, done[1], observe=observe, note=self._note)
        for model in {part.model for part in parts}:
            if ids := self._running_shards(model):
                self.rows.notes.append(
                    f"jobs {', '.join(ids)} of an earlier run of {model} still wait or run; the new ones start after "
                    f"them and do what is left then (to end them now: scancel {' '.join(ids)})"
                )
        shard.end_with_parent()
        for note in self.rows.notes:
            self.progress.event(note)
            print(note, file=sys.stderr)
        self.progress.start()

    def _estimate(self, row: Row) -> estimate.Estimate:
        positions = [self._first_missing(row, task) for task in row.tasks]
        left = [
            0 if position is None else task.step_budget - min(position // 2, task.step_budget)
            for task, position in zip(row.tasks, positions, strict=True)
        ]
        mine = [other for other in self.rows if other.model == row.model]
        return estimate.estimate(
            row,
            left,
            self.config.expect,
            in_flight=self.config.tasks_in_flight,
            shards=shard.count_of(self.config, row.model, mine) or 1,
            gpu=shard.needs_gpu(self.config.world_row(row.model)),
        )

    def plan(self) -> None:
        """Prints what is left to do and what it will take, and the last run's estimate beside what it made."""
        lines = [estimate.table([self._estimate(row) for row in self.rows]), *self.rows.notes]
        lines += [line for row in self.rows if (line := estimate.compared(row))]
        print("\n".join(lines))

    def preflight(self) -> None:
        """Prints what keeps the run that is asked for from working here. Raises InfrastructureFailure if anything."""
        elsewhere = self._submits() and self.config.shards is not None
        problems: list[str] = []
        kinds: set[slurm.Kind] = set()
        for row in self.rows:
            served = shard.is_served_elsewhere(self.config.world_row(row.model))
            if elsewhere and not served:
                kinds.add(self._shard_kind(row.model))
                problems += [*row.planner.preflight(), *preflight.weights_faults(self.config, row)]
            else:
                problems += preflight.local_faults(row)
        for kind in sorted(kinds):
            if reason := slurm.refusal(self.config.slurm.resources(kind)):
                problems.append(f"SLURM refuses {kind} jobs: {reason}; see slurm.{kind} of the configuration")
        for check in self.checks:
            problems += check({"measure", "judge", *(["update"] if self.config.run else [])})
        problems += preflight.machine_faults(sum(self._estimate(row).bytes for row in self.rows), ROLLOUTS)
        problems = list(dict.fromkeys(problems)) or preflight.endpoint_faults(self.config, list(self.rows))
        print(
            "\n".join(["this run cannot succeed here:", *(f"  - {text}" for text in problems)]) if problems else "ready"
        )
        if problems:
            raise InfrastructureFailure("preflight", "what is missing stands above")

    def _say_what_is_stuck(self) -> None:
        """Tells once of jobs that wait for something that waiting does not bring."""
        for reason, jobs in slurm.stuck(Path.cwd()).items():
            note = f"jobs {', '.join(jobs)} will not start by themselves: {reason} (squeue -j {jobs[0]} -o %r)"
            if note not in self.rows.notes and self.progress:
                self.rows.notes.append(note)
                self.progress.event(note)
                print(note, file=sys.stderr)

    def _refused_by_slurm(self, jobs: Sequence[Any]) -> list[str]:
        """Which jobs SLURM would not take, in its own words; asked once for each set of resources."""
        asked: dict[tuple[Any, ...], str] = {}
        for job in jobs:
            if not job.is_local:
                resources = {name: job.resources.get(name) for name in (*slurm.OPTIONS, "slurm_extra")}
                asked.setdefault(tuple(resources.items()), job.rule.name)
        reasons = {rule: slurm.refusal(dict(resources)) for resources, rule in asked.items()}
        return [
            f"SLURM refuses the jobs of rule {rule}: {reason}; see the block `slurm:` of the configuration"
            for rule, reason in reasons.items()
            if reason
        ]

    def _refuse_other_track(self, row: Row) -> None:
        """A row's folder holds one track: refuses to overwrite recorded-action results with planned ones and back."""
        path = row.folder / "row.json"
        if path.is_file() and (there := read_json(path)["track"]) != row.track:
            setting = {"online": "agent", "offline": "nohist"}[row.track]
            raise InvalidInput(
                str(path),
                "planner",
                f"a planner of the {there} track, whose results lie in {row.folder}",
                f"{row.planner_name} ({row.track} track)",
                f"--config setting={setting}, or another setting of your own with planner: {row.planner_name}",
            )

    def _claim(self, row: Row) -> None:
        """Notes which track a row's folder holds."""
        path = row.folder / "row.json"
        if not path.is_file():
            mine = {"schema": 1, "record": "row", "track": row.track, "model": row.model, "setting": row.setting}
            write_json(path, mine)

    def _tune_scheduler(self) -> None:
        logger.addFilter(_no_chatter)
        scheduler = self.workflow.scheduler
        # Snakemake <= 9.27 arms one timer per scheduling round while a rate limit is set: quadratic in the jobs.
        scheduler.job_rate_limiter = None
        for executor in (scheduler._local_executor, scheduler._executor):
            pool = getattr(executor, "pool", None)
            if pool is not None:
                # Sized for cores by Snakemake; a job that waits needs a thread and no core.
                pool._max_workers = max(pool._max_workers, self.config.tasks_in_flight + executor.workers)

    def finish(self, success: bool) -> None:
        """Prints what there is, what failed, and how to go on."""
        self.locks.release()
        if self.progress is None:
            return
        self.progress.stop()
        shard.report_failures([vars(job) for job in self.progress.infrastructure.values()])
        text = self.summary(success)
        self.progress.event("run ends\n" + text)
        print(text, file=sys.stderr)

    def summary(self, success: bool) -> str:
        """What there is per row, which targets stopped on infrastructure, and the command that goes on."""
        lines = self._other_stages()
        rows = [] if self._only_other_stages() else list(self.rows)
        for row in rows:
            ends: Counter[str] = Counter()
            for task in row.tasks:
                path = row.folder / task.task_id / "trajectory.json"
                if first_stale(row, task) is None:
                    record = read_record(path)
                    ends[record["error"] or record["end_reason"]] += 1
            label = f"{row.model}/{row.setting}" + (
                f" (partial: {len(row.tasks)} of {row.total_tasks} tasks)" if row.partial else ""
            )
            counts = ", ".join(f"{reason} {n}" for reason, n in sorted(ends.items())) or "none"
            lines.append(f"{label}: {sum(ends.values())} of {len(row.tasks)} tasks complete ({counts})")
            if success:
                lines.append(f"  results: {row.folder}/rollout_results.json")
        lines += [line for row in rows for part in self._open_shards(row) for line in part.trouble()]
        failed = list(self.progress.infrastructure.values()) if self.progress else []
        if failed:
            lines.append(f"{len(failed)} targets stopped on infrastructure; everything else is kept:")
            lines += [f"  {job.target}\n    {job.code}: {job.message}" for job in failed[:20]]
            if len(failed) > 20:
                lines.append(f"  … and {len(failed) - 20} more, see {LOGS}/progress.log")
        if self.config.shard is None:
            lines += [f"  {line}" for row in rows if (line := estimate.compared(row))]
        if success:
            planned = {str(file) for job in self.workflow.dag.jobs for file in job.output}
            shown = [f"results/tables/{track}.md" for track in ("online", "offline")] + ["results/report/index.html"]
            lines += [f"Look at {path}" for path in shown if path in planned]
        if not success:
            lines.append(f"Logs: {LOGS}/. To go on where this run stopped, repeat the command:\n  {command()}")
        return "\n".join(lines)

    def _other_stages(self) -> list[str]:
        return [line for say in self.summaries for line in say(self._planned)]

    def _only_other_stages(self) -> bool:
        """Whether this invocation makes nothing of a rollout, so that rows have no place in what it says."""
        return bool(self._other_stages()) and not self._planned & {*STEP_RULES, *READING_RULES, "shard"}

    def _note(self) -> str:
        return "  ".join(line for line in self._other_stages() if not line.startswith(" "))


def _no_chatter(record: logging.LogRecord) -> bool:
    """Drops Snakemake's message per job and per scheduling round; the progress line says it better."""
    event = str(getattr(record, "event", "")).rpartition(".")[2].lower()
    if event in ("job_info", "job_finished", "job_started", "progress"):
        return False
    return not record.getMessage().startswith(("Select jobs to execute", "Execute "))


def command() -> str:
    """The command line of this run, ready to paste."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _lock_name(file: str) -> str:
    """What is locked for an output: a rollout's whole task, a model's shards, a training run, else the file itself."""
    parts = Path(file).parts
    if parts[:2] in (shard.SHARDS.parts, ("results", "train")):  # a training run has one writer at a time
        return "/".join(parts[:3])
    return "/".join(parts[:5]) if parts[:2] == ROLLOUTS.parts and len(parts) > 5 else file
