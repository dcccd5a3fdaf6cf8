"""Scores in the real workflow: two judges, tables against numbers made by hand, what a change or a loss costs.

Three online tasks of two taps each. `copy_last` completes all of them; `chat_html` answers prose on task t001, which is
its failure and scores 0 in every metric.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
from PIL import Image

from tests.servers.fake_openai import FakeOpenAI, Request, Response, page, text, tool_call
from tests.servers.judge import metric_of, reply

from .conftest import REPOSITORY, Workflow, write_tasks

KIND = {"S_ad": 8, "S_id": "tap", "S_use": 4, "S_cp": 3, "S_rd": 5, "S_mp": True}
HARSH = {"S_ad": 6, "S_id": "none", "S_use": 5, "S_cp": 1, "S_rd": 0, "S_mp": False}
KIND_SCORES = {"S_ad": 80.0, "S_id": 100.0, "S_use": 80.0, "S_cp": 60.0, "S_rd": 100.0, "S_mp": 100.0, "Overall": 86.7}
HARSH_SCORES = {"S_ad": 60.0, "S_id": 0.0, "S_use": 100.0, "S_cp": 20.0, "S_rd": 0.0, "S_mp": 0.0, "Overall": 30.0}
CALLS = 9
"""Per judge and complete episode: 3 for each of two transitions, S_cp, S_rd, S_mp."""
EPISODES = 5
LAST_PIXEL = tuple(numpy.random.default_rng(1).integers(0, 255, (64, 64, 3), dtype=numpy.uint8)[63, 63].tolist())
"""Of task t001's first screen, away from the drawn action: the world model is not told the instruction."""


def script(request: Request) -> Response:
    """Planner, HTML world and both judges at one address."""
    judged = reply(request, HARSH if request.body["model"].startswith("harsh") else KIND)
    if judged is not None:
        return judged
    if "tools" in request.body:
        if request.turn > 2:
            return tool_call({"action": "terminate", "status": "success"})
        return tool_call({"thinking": "Next.", "action": "tap", "coordinate": [request.turn * 9, 7]})
    with Image.open(io.BytesIO(request.images[-1])) as shown:
        pixel = shown.convert("RGB").getpixel((63, 63))
    return text("I would rather not.") if pixel == LAST_PIXEL else page(request)


def configure(workflow: Workflow, url: str, **changes: Any) -> list[str]:
    """Arguments of a run; `changes` replace top-level keys of its configuration."""
    there = {"base_url": url, "api_key_env": None, "max_attempts": 2}
    config = {
        "model": "copy_last,chat_html",
        "planner": "openai",
        "tasks": "set",
        "judge": "kind,harsh",
        "planners": {"openai": {"kind": "openai", "model": "planner", **there}},
        "models": {"chat_html": {"endpoint": url, "api_key_env": None, "max_attempts": 2}},
        "judges": {name: {"model": f"{name}-1", "answers": 1, **there} for name in ("kind", "harsh")},
    }
    (workflow.directory / "scores.yaml").write_text(json.dumps({**config, **changes}))
    return ["--configfile", "scores.yaml"]


def lines(workflow: Workflow) -> dict[str, dict[str, str]]:
    """The table's lines by model."""
    with open(workflow.directory / "results/tables/online.csv", newline="") as stream:
        return {line["model"]: line for line in csv.DictReader(stream)}


def asked(server: FakeOpenAI, since: int) -> list[tuple[str, str]]:
    """(judge's model, metric) of the judges' requests since a number; anything else fails the test."""
    found = [(request.body["model"], metric_of(request)) for request in server.requests[since:]]
    assert all(metric for _, metric in found), found
    return found


@pytest.fixture
def checkout(tmp_path: Path) -> Workflow:
    """A working directory with a copy of what the workflow reads, so that prompts can be changed."""
    for name in ("Snakefile", "rules", "config", "profiles", "docs"):
        source = REPOSITORY / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    (tmp_path / "workflow_scripts").symlink_to(REPOSITORY / "workflow_scripts")

    class Own(Workflow):
        def command(self, *arguments: str, cores: int = 2) -> list[str]:
            command = super().command(*arguments, cores=cores)
            return [str(self.directory / "Snakefile") if part.endswith("/Snakefile") else part for part in command]

    return Own(tmp_path)


@pytest.mark.slow
def test_tables_losses_and_changes(checkout):
    workflow = checkout
    write_tasks(workflow.directory / "set", "online", 3, 4)
    with FakeOpenAI(script) as server:
        run = configure(workflow, server.base_url)
        workflow.ok(*run)
        judged = [request for request in server.requests if metric_of(request)]
        assert len(judged) == CALLS * EPISODES * 2

        # Numbers made by hand; a model failure is 0 of three, so that chat_html has two thirds of everything.
        table = lines(workflow)
        for judge, scores in (("kind", KIND_SCORES), ("harsh", HARSH_SCORES)):
            for metric, value in scores.items():
                name = f"{metric} ({judge})"
                assert float(table["copy_last"][name]) == value
                assert float(table["chat_html"][name]) == pytest.approx(value * 2 / 3, abs=0.06)
                assert float(table["copy_last"][f"{name} low"]) == float(table["copy_last"][f"{name} high"]) == value
        assert float(table["chat_html"]["S_ad (kind) low"]) == 0
        assert float(table["chat_html"]["S_ad (kind) high"]) == 80
        assert {model: line["model_failures"] for model, line in table.items()} == {"copy_last": "0", "chat_html": "1"}
        assert {line["scope"] for line in table.values()} == {"full"}
        columns = list(table["copy_last"])
        assert columns[:6] == ["model", "setting", "repeats", "tasks", "scope", "model_failures"]
        tables = workflow.directory / "results/tables"
        assert list(pandas.read_parquet(tables / "online.parquet").columns) == columns
        markdown = (tables / "online.md").read_text().splitlines()
        assert markdown[2].startswith("| copy_last | nohist | 1 | 3 | full | 0 | 80.0 | 100.0 | 80.0 | 60.0 | 100.0 |")
        assert r"copy\_last & nohist & 1 & 3 & full & 0 & 80.0 & 100.0" in (tables / "online.tex").read_text()
        with open(tables / "online_pairs.csv", newline="") as stream:
            pairs = {line["metric"]: line for line in csv.DictReader(stream)}
        assert float(pairs["S_ad (kind)"]["a minus b"]) == pytest.approx(0.8 / 3, abs=1e-4)
        row = workflow.json("results/scores/chat_html/nohist/scores.json")
        assert row["tasks"]["t001"]["failure"] == "no_html"
        assert row["model_failures"] == {"no_html": 1}
        assert row["agreement"]["nominal"]["judges"] == 2
        assert row["costs"]["judge"]["calls"] == CALLS * 2 * 2
        assert row["costs"]["judge"]["input_tokens"] == CALLS * 2 * 2 * 11
        assert (workflow.directory / "results/report/index.html").is_file()
        assert workflow.planned(*run) == {}

        # A lost call costs one call.
        before, seen = (tables / "online.csv").read_bytes(), len(server.requests)
        call = workflow.directory / "results/scores/copy_last/nohist/t002/judge/kind/S_id_step_001.json"
        call.unlink()
        workflow.ok(*run)
        assert asked(server, seen) == [("kind-1", "S_id")]
        assert (tables / "online.csv").read_bytes() == before
        assert workflow.planned(*run) == {}
        # By its name as well.
        call.unlink()
        workflow.ok(str(call.relative_to(workflow.directory)), *run)
        assert asked(server, seen) == [("kind-1", "S_id")] * 2

        # A changed prompt is asked again, and nothing else is.
        seen = len(server.requests)
        prompt = workflow.directory / "config/prompts/judge/s_ad_user.md"
        prompt.write_text(prompt.read_text() + "\nBe brief.\n")
        workflow.ok(*run)
        assert sorted(asked(server, seen)) == sorted([("kind-1", "S_ad"), ("harsh-1", "S_ad")] * 2 * EPISODES)
        # So is another model behind a judge's name; the other judge's calls stay.
        seen = len(server.requests)
        judges = json.loads((workflow.directory / "scores.yaml").read_text())["judges"]
        judges["harsh"]["model"] = "harsh-2"
        run = configure(workflow, server.base_url, judges=judges)
        workflow.ok(*run)
        assert {model for model, _ in asked(server, seen)} == {"harsh-2"}
        assert len(server.requests) - seen == CALLS * EPISODES
        # Where the judge is, changes nothing.
        judges["harsh"].update(timeout_s=5.0, in_flight=1)
        assert workflow.planned(*configure(workflow, "http://127.0.0.1:9/v1", judges=judges)) == {}


def test_a_judge_that_answers_prose_blocks_its_row_and_keeps_the_rest(workflow):
    broken = True

    def prose(request: Request) -> Response:
        if broken and metric_of(request) == "S_use" and request.body["model"] == "kind-1":
            return text("It looks fine to me, four of five.")
        return script(request)

    write_tasks(workflow.directory / "set", "online", 2, 4)
    with FakeOpenAI(prose) as server:
        run = configure(workflow, server.base_url, model="copy_last")
        output = workflow.refused(*run)
        assert "judge_no_json" in output
        assert "repeat the command" in output
        assert not (workflow.directory / "results/tables/online.csv").exists()
        log = workflow.directory / "results/logs/scores/copy_last/nohist/t000/judge_kind.log"
        assert "four of five" in log.read_text()
        harsh = workflow.directory / "results/scores/copy_last/nohist/t000/judge/harsh/judged.json"
        assert harsh.is_file()
        broken = False
        seen = len(server.requests)
        workflow.ok(*run)
        # What was answered is not asked again: only S_use, on two transitions of two tasks.
        assert asked(server, seen) == [("kind-1", "S_use")] * 4
    assert float(lines(workflow)["copy_last"]["Overall (kind)"]) == 86.7


def test_a_selection_has_no_overall_and_repeats_give_intervals(workflow):
    def uneven(request: Request) -> Response:
        values = {**KIND, "S_ad": 4 if "t002" in json.dumps(request.body) else 8}
        return reply(request, values) or script(request)

    write_tasks(workflow.directory / "set", "online", 4, 4)
    with FakeOpenAI(uneven) as server:
        run = configure(workflow, server.base_url, model="copy_last", judge="kind", subset=2, seeds=2)
        workflow.ok(*run)
        line = lines(workflow)["copy_last"]
        assert (line["tasks"], line["repeats"], line["scope"], line["Overall (kind)"]) == ("2", "2", "partial", "")
        # Tasks t000 and t002 in two repeats each: means 0.8 and 0.4, drawn as whole tasks.
        assert [float(line[f"S_ad (kind){part}"]) for part in ("", " low", " high")] == [60.0, 40.0, 80.0]
        assert (workflow.directory / "results/report/rows/copy_last/nohist-r1/index.html").is_file()
        # Without the selection what was judged is kept.
        seen = len(server.requests)
        workflow.ok(*configure(workflow, server.base_url, model="copy_last", judge="kind"))
        assert sum(metric_of(request) is not None for request in server.requests[seen:]) == CALLS * 2
    assert float(lines(workflow)["copy_last"]["Overall (kind)"]) == 85.0
