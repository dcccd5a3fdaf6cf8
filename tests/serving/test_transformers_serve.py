"""`transformers serve` on a tiny real model as the chat server of an HTML world model, in the real workflow.

A randomly initialised model writes no HTML, so the expected result of every task is a recorded model failure.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("transformers")
pytest.importorskip("fastapi")
pytest.importorskip("snakemake")

from tests.workflow.conftest import REPOSITORY, Workflow, write_tasks

TOKENS = 24


class Served(NamedTuple):
    """A running server and the name of its model, which is its folder."""

    endpoint: str
    model: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    from tests.tiny.vlm import VISION, build

    folder = build(tmp_path_factory.mktemp("vlm"))
    # A random model samples placeholders of pictures, on which its own next step stumbles.
    tokens = {t["content"]: t["id"] for t in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]}
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "suppress_tokens": [tokens[name] for name in VISION]}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tests.tiny.serve", "serve", str(folder)]
    log = folder / "serve.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command, "--device", "cpu", "--host", "127.0.0.1", "--port", str(port)],
            cwd=REPOSITORY,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        try:
            deadline = time.monotonic() + 180
            while not _healthy(port):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
            yield Served(f"http://127.0.0.1:{port}/v1", str(folder))
        finally:
            process.kill()
            process.wait()


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def arguments(workflow: Workflow, **row: Any) -> list[str]:
    config = {"model": "chat_html", "tasks": "set", "models": {"chat_html": {"max_attempts": 1, **row}}}
    (workflow.directory / "run.yaml").write_text(json.dumps(config))
    return ["rollouts", "--configfile", "run.yaml"]


@pytest.mark.slow
def test_chat_html_at_transformers_serve(served: Served, tmp_path: Path) -> None:
    workflow = Workflow(tmp_path)
    write_tasks(tmp_path / "set", "offline", 2, 2)
    unknown = arguments(workflow, endpoint=served.endpoint, model="no/such-model")
    assert "endpoint_rejected_request" in workflow.refused(*unknown)
    row = workflow.directory / "results/rollouts/chat_html/nohist"
    assert not list(row.rglob("prediction.json"))

    run = arguments(workflow, endpoint=served.endpoint, model=served.model, max_tokens=TOKENS)
    assert "chat_html/nohist: 2 of 2 tasks complete" in workflow.ok(*run)
    for task in ("t000", "t001"):
        record = json.loads((row / task / "trajectory.json").read_text())
        assert (record["end_reason"], record["failure_class"]) == ("model_failure", "model")
        step = json.loads((row / task / "step_000/prediction.json").read_text())
        assert step["failure"]["code"] in ("no_html", "cut_off", "empty_reply")
        assert 0 < step["evidence"]["usage"]["completion_tokens"] <= TOKENS
    assert workflow.planned(*run) == {}
