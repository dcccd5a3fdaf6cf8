"""The scoring stage where it meets Snakemake: answers the questions of rules/score.smk, as `run.Run` does for rollouts.

What counts as unchanged is decided by content here too: a measured.json or judged.json holds while its identity is the
one asked for and its rollout says what it was made from.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from snakemake.io import ancient

from . import judge, measure, report_run, row_scores, tables
from .chain import read_record
from .failures import InfrastructureFailure
from .identity import digest
from .plan import Row
from .run import Run
from .scoring.features import METRIC_OF
from .scoring.judges import JudgeSettings
from .tasks import TRACKS, Task, Track

SCORES = Path("results/scores")
TABLES = Path("results/tables")


class ScoreRun:
    """See the module. `run` is the invocation it belongs to."""

    def __init__(self, run: Run) -> None:
        self.run = run
        config = run.config
        self.judges: dict[str, JudgeSettings] = {
            name: judge.settings(name, config.judge_row(name)) for name in config.judge
        }
        self._clients: dict[str, Any] = {}
        run.checks.append(self.preflight)

    @cached_property
    def measures(self) -> measure.Measures:
        return measure.Measures(self.run.config.metrics)

    @cached_property
    def measures_identity(self) -> dict[str, Any]:
        return self.measures.identity()

    @property
    def tracks(self) -> list[Track]:
        """Tracks of the rows that are asked for."""
        return [track for track in TRACKS if any(row.track == track for row in self.run.rows)]

    # --- targets and inputs -------------------------------------------------------------------------------------------

    def score_targets(self) -> list[str]:
        return [str(self._folder(row) / "scores.json") for row in self.run.rows]

    def table_targets(self) -> list[str]:
        return [str(TABLES / f"{track}.csv") for track in self.tracks]

    def rows_of(self, track: str) -> list[str]:
        return [str(self._folder(row) / "scores.json") for row in self.run.rows if row.track == track]

    def rollout(self, w: Any) -> Any:
        """Input of measure and judge: the trajectory, `ancient` while what was made from it holds."""
        row, task = self._task(w)
        output, identity = self._output(w, row, task)
        trajectory = self.run.trajectory_input(row, task)
        if self._holds(output, identity, row, task):
            return ancient(trajectory)
        if output.is_file():
            self.run.workflow.dag.forcefiles.add(str(output))
        return trajectory

    def scored(self, w: Any) -> list[str]:
        """Inputs of row_scores."""
        row = self.run.rows.get(w.model, w.setting)
        folder = self._folder(row)
        files = [folder / task.task_id / "measured.json" for task in row.tasks]
        files += [folder / task.task_id / "judge" / name / "judged.json" for name in self.judges for task in row.tasks]
        return [str(row.folder / "rollout_results.json"), *map(str, files)]

    def measured_identity(self, w: Any) -> str:
        return measure.identity(*self._task(w), self.measures_identity)

    def judged_identity(self, w: Any) -> str:
        return judge.identity(self._judge(w), self._task(w)[1])

    def row_identity(self, w: Any) -> str:
        row = self.run.rows.get(w.model, w.setting)
        judges = {name: settings.identity() for name, settings in self.judges.items()}
        tasks = [task.task_id for task in row.tasks]
        return digest({"run": row.run, "measures": self.measures_identity, "judges": judges, "tasks": tasks})

    @cached_property
    def report_identity(self) -> str:
        return report_run.identity()

    def report_rows(self) -> list[str]:
        return [str(report_run.REPORT / "rows" / row.model / row.setting / "index.html") for row in self.run.rows]

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def measure(self, w: Any, output: Any, log: Any) -> None:
        row, task = self._task(w)
        identity = self.measured_identity(w)
        self.run.job(output[0], log[0], lambda: measure.main(row, task, self.measures, identity, Path(output[0])))

    def judge(self, w: Any, output: Any, log: Any) -> None:
        row, task = self._task(w)
        settings, chat, scores = self._judge(w), self._client(w.judge), self._folder(row)
        self.run.job(output[0], log[0], lambda: judge.main(row, task, settings, chat, scores, Path(output[0])))

    def judge_call(self, w: Any, output: Any, log: Any) -> None:
        row, task = self._task(w)
        settings, chat, scores = self._judge(w), self._client(w.judge), self._folder(row)
        self.run.job(output[0], log[0], lambda: judge.one_call(row, task, settings, chat, scores, w.call))

    def row_scores(self, w: Any, output: Any, log: Any) -> None:
        row = self.run.rows.get(w.model, w.setting)
        judges, identity, scores = list(self.judges.values()), self.row_identity(w), self._folder(row)
        features = [METRIC_OF[model.settings.kind] for model in self.measures.features]

        def work() -> str:
            return row_scores.main(row, judges, features, identity, scores, Path(output[0]))

        self.run.job(output[0], log[0], work)

    def tables(self, records: Any, output: Any, log: Any) -> None:
        outputs = {name: Path(path) for name, path in output.items()}
        self.run.job(output[0], log[0], lambda: tables.main([Path(path) for path in records], outputs))

    def report_row(self, w: Any, output: Any, log: Any) -> None:
        row = self.run.rows.get(w.model, w.setting)
        self.run.job(output[0], log[0], lambda: report_run.row(row, SCORES))

    def report(self, output: Any, log: Any) -> None:
        rows = list(self.run.rows)
        self.run.job(output[0], log[0], lambda: report_run.index(rows, SCORES, TABLES))

    # --- inside -------------------------------------------------------------------------------------------------------

    def preflight(self, rules: set[str]) -> list[str]:
        """What keeps the judges from working here, where any is going to be asked."""
        if "judge" not in rules:
            return []
        return [problem for name in self.judges if (problem := self._client(name).missing_key())]

    def _folder(self, row: Row) -> Path:
        return SCORES / row.model / row.setting

    def _task(self, w: Any) -> tuple[Row, Task]:
        row = self.run.rows.get(w.model, w.setting)
        return row, row.task(w.task)

    def _judge(self, w: Any) -> JudgeSettings:
        if w.judge not in self.judges:
            self.judges[w.judge] = judge.settings(w.judge, self.run.config.judge_row(w.judge))
        return self.judges[w.judge]

    def _client(self, name: str) -> Any:
        if name not in self._clients:
            self._clients[name] = judge.client(self.run.config.judge_row(name))
        return self._clients[name]

    def _output(self, w: Any, row: Row, task: Task) -> tuple[Path, str]:
        folder = self._folder(row) / task.task_id
        if hasattr(w, "judge"):
            return folder / "judge" / w.judge / "judged.json", self.judged_identity(w)
        return folder / "measured.json", self.measured_identity(w)

    def _holds(self, output: Path, identity: str, row: Row, task: Task) -> bool:
        if self.run.stale(row, task):
            return False
        try:
            record = read_record(output)
            trajectory = read_record(row.folder / task.task_id / "trajectory.json")
        except InfrastructureFailure:
            return False
        same = record["identity"] == identity and record["inputs"] == {"content": measure.content(trajectory)}
        return same and (record["record"] != "judged" or judge.holds(record, self._folder(row)))
