"""The OpenEnv server over real sockets: its conformance, sessions, tasks, and the original's routes."""

import base64
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openenv", reason="the optional extra `server` is not installed")

import requests
import uvicorn
from openenv.validation.graders import Subject
from openenv.validation.graders.runtime import (
    ObservationSchemaGrader,
    RewardWellFormedGrader,
    StateContractGrader,
)
from openenv.validation.parsers.openenv_yaml import OpenEnvYamlParser
from openenv.validation.runtime.contracts import RuntimeEvidence, WireExchange
from websockets.sync.client import connect

from workflow_scripts.coder.blocks import Camera
from workflow_scripts.coder.client import CoderClient
from workflow_scripts.coder.environment import EnvironmentConfig
from workflow_scripts.coder.hacks import HACKS
from workflow_scripts.coder.pages import procedural_page, procedural_task
from workflow_scripts.coder.scorers import VisibleScorer
from workflow_scripts.coder.server import make_app
from workflow_scripts.coder.wire import HtmlAction

PACKAGE = Path(__file__).parents[2] / "workflow_scripts" / "coder"
PAGE = procedural_page("easy", "train", 3)


@pytest.fixture(scope="module")
def url(camera: Camera) -> Iterator[str]:
    app = make_app(EnvironmentConfig(max_turns=3), VisibleScorer(camera=camera), max_sessions=8, session_timeout_s=60)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


class Wire:
    """A WebSocket that remembers every exchange as OpenEnv's graders want it."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.exchanges: list[WireExchange] = []

    def send(self, kind: Any, data: dict[str, Any] | None = None) -> dict[str, Any]:
        message = {"type": kind} if data is None else {"type": kind, "data": data}
        request = json.dumps(message)
        self.socket.send(request)
        answer = str(self.socket.recv())
        self.exchanges.append(WireExchange(kind, request, answer))
        return json.loads(answer)  # type: ignore[no-any-return]


@pytest.fixture
def wire_to(url: str) -> Iterator[Callable[[], Wire]]:
    """Opens connections, which are closed after the test."""
    with contextlib.ExitStack() as stack:
        address = url.replace("http", "ws") + "/ws"
        yield lambda: Wire(stack.enter_context(connect(address, max_size=2**26)))


def test_openenv_validates_the_running_server(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "openenv.cli", "validate", "--url", url, "--timeout", "30"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "FAIL" not in done.stdout


def test_openenv_validates_the_manifest() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "openenv.cli", "validate", str(PACKAGE), "--level", "static", "--skip-build"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "PASS  static.manifest" in done.stdout, done.stdout + done.stderr


def test_openenvs_own_graders_pass_a_recorded_episode(url: str, wire_to: Callable[[], Wire]) -> None:
    wire = wire_to()
    wire.send("reset", {"seed": 4, "episode_id": "measured"})
    wire.send("state")
    for html in ("<p>no</p>", "", PAGE.html):
        wire.send("step", {"html": html})
        wire.send("state")
    schema = requests.get(f"{url}/schema", timeout=30).json()
    evidence = RuntimeEvidence(tuple(wire.exchanges), json.dumps(schema["observation"]))
    subject = Subject(PACKAGE, OpenEnvYamlParser().parse(PACKAGE), None, None, PACKAGE, evidence)
    for grader in (RewardWellFormedGrader(), ObservationSchemaGrader(), StateContractGrader()):
        result = grader.run(subject)
        assert result.status.value == "pass", result.evidence


def test_the_same_seed_and_actions_give_the_same_episode(wire_to: Callable[[], Wire]) -> None:
    """What OpenEnv names seed_control, episode_determinism, verifier_determinism and replayability."""

    def episode(_: int) -> list[Any]:
        wire = wire_to()
        start = wire.send("reset", {"seed": 9, "level": "medium"})
        task = procedural_task(start["data"]["observation"]["task_id"])
        broken = task.html.replace("</h1>", " and more</h1>").replace("<b>", "")
        return [start, wire.send("step", {"html": broken}), wire.send("step", {"html": "<h1>other</h1>"})]

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(episode, range(2))
    assert first == second
    other = wire_to().send("reset", {"seed": 10, "level": "medium"})
    assert other["data"]["observation"]["reference_png"] != first[0]["data"]["observation"]["reference_png"]


def test_the_oracle_earns_the_maximum_and_canaries_the_floor(wire_to: Callable[[], Wire]) -> None:
    wire = wire_to()
    start = wire.send("reset", {"task_id": PAGE.id})
    png = base64.b64decode(start["data"]["observation"]["reference_png"])
    for name in ("blank", "data_image", "dump"):
        assert wire.send("step", {"html": HACKS[name](PAGE.html, png)})["data"]["reward"] < 0.05
        wire.send("reset", {"task_id": PAGE.id})
    assert wire.send("step", {"html": PAGE.html})["data"]["reward"] == 1.0


def test_no_message_holds_the_solution(url: str, wire_to: Callable[[], Wire]) -> None:
    wire = wire_to()
    wire.send("reset", {"task_id": PAGE.id})
    wire.send("step", {"html": "<p>try</p>"})
    wire.send("state")
    told = "".join(exchange.response_json for exchange in wire.exchanges)
    told += requests.post(f"{url}/visual_coder/task", json={"split": "train", "index": 0}, timeout=30).text
    words = [w for w in PAGE.html.split("<body>")[1].replace("<", " <").split() if w.isalpha() and len(w) > 5]
    assert words
    assert not [word for word in words if word in told]


def test_connections_are_apart_and_errors_are_told(wire_to: Callable[[], Wire]) -> None:
    one, two = wire_to(), wire_to()
    assert one.send("step", {"html": "<p>"})["type"] == "error"
    one.send("reset", {"task_id": PAGE.id})
    two.send("reset", {"task_id": "procedural/hard/train/1"})
    one.send("step", {"html": "<p>x</p>"})
    assert two.send("state")["data"]["step_count"] == 0
    assert one.send("state")["data"]["task_id"] == PAGE.id
    assert one.send("step", {"markup": "<p>"})["data"]["code"] == "VALIDATION_ERROR"
    assert one.send("reset", {"task_id": "procedural/none"})["type"] == "error"


def test_the_task_api_tells_splits_and_tasks(url: str, wire_to: Callable[[], Wire]) -> None:
    assert requests.get(f"{url}/list_environments", timeout=30).json() == ["visual_coder"]
    splits = requests.get(f"{url}/visual_coder/splits", timeout=30).json()
    assert [split["name"] for split in splits] == ["train", "heldout"]
    count = requests.post(f"{url}/visual_coder/num_tasks", json={"split": "heldout"}, timeout=30).json()
    assert count == {"num_tasks": 30_000}
    task = requests.post(f"{url}/visual_coder/task", json={"split": "heldout", "index": 5}, timeout=30).json()["task"]
    start = wire_to().send("reset", {"split": "heldout", "index": 5})
    assert start["data"]["observation"]["task_id"] == task["id"]
    listed = requests.post(f"{url}/visual_coder/tasks", json={"split": "train"}, timeout=30).json()["tasks"]
    assert len(listed) == 100
    bad = requests.post(f"{url}/visual_coder/task", json={"split": "train", "index": 10**6}, timeout=30)
    assert bad.status_code == 400


def test_the_client_plays_an_episode(url: str) -> None:
    with CoderClient(base_url=url).sync() as env:
        start = env.reset(task_id=PAGE.id)
        assert start.observation.reference_png
        assert not start.done
        done = env.step(HtmlAction(html=PAGE.html))
        assert (done.reward, done.done, done.observation.reason) == (1.0, True, "success")
        assert env.state().step_count == 1


def test_the_originals_routes_answer(url: str) -> None:
    start = requests.post(f"{url}/reset", params={"difficulty": "easy", "max_steps": 2}, timeout=30).json()
    assert (start["done"], start["reward"], start["metadata"]["difficulty"]) == (False, None, "easy")
    assert base64.b64decode(start["screenshot_b64"]).startswith(b"\x89PNG")
    page = procedural_task(start["metadata"]["task_id"])
    body = {"html": page.html, "session_id": start["session_id"]}
    done = requests.post(f"{url}/step", json=body, timeout=30).json()
    assert (done["reward"], done["done"], done["metadata"]["rewards"]["total"]) == (1.0, True, 1.0)
    assert requests.post(f"{url}/step", json=body, timeout=30).status_code == 409
    assert requests.delete(f"{url}/close", params={"session_id": start["session_id"]}, timeout=30).status_code == 204
    assert requests.post(f"{url}/step", json=body, timeout=30).status_code == 404
    assert requests.post(f"{url}/reset", params={"difficulty": "brutal"}, timeout=30).status_code == 422
    picture = requests.post(f"{url}/render", json={"html": "<h1>Hello</h1>"}, timeout=30).json()
    assert base64.b64decode(picture["image_b64"]).startswith(b"\x89PNG")
    assert requests.post(f"{url}/render", json={"html": "x" * 200_000}, timeout=30).status_code == 422


def test_openenvs_stateless_routes_still_answer(url: str) -> None:
    start = requests.post(f"{url}/reset", json={"seed": 3, "level": "easy"}, timeout=30).json()
    assert start["observation"]["task_id"] == "procedural/easy/train/3"
    stray = requests.post(f"{url}/step", json={"action": {"html": "<p>"}}, timeout=30)
    assert stray.status_code == 404
