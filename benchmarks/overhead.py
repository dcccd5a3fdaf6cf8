"""What the workflow costs on top of the models.

Part 1: CPU time of the whole workflow per job, for rollouts whose planner and world do nothing (recorded actions,
`copy_last`): planning, scheduling, records and pictures included. Part 2: wall time of the same closed loop, planner
and world model behind HTTP with a fixed latency, in guiloop and in a plain thread pool over tasks that makes the same
requests and keeps nothing, both in this run, as a ratio.

    python benchmarks/overhead.py                    # all
    python benchmarks/overhead.py --shapes 20x10 --latency 0.2 --tasks 16 --steps 5
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))

from tests.servers.fake_openai import FakeOpenAI, tool_call  # noqa: E402
from tests.workflow.conftest import write_tasks  # noqa: E402
from workflow_scripts.chat import ChatClient, image_part, text_part  # noqa: E402


def snakemake(folder: Path, *arguments: str) -> tuple[float, float]:
    """Runs the workflow in `folder`; returns its wall and CPU seconds."""
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--snakefile", str(REPOSITORY / "Snakefile")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    done = subprocess.run([*command, "rollouts", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    wall = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def per_job(tasks: int, steps: int) -> None:
    """One line of part 1."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tasks(folder / "set", "offline", tasks, steps)
        arguments = ["--config", "model=copy_last", "tasks=set"]
        jobs = tasks * (2 * steps + 1) + 2
        _, plan = snakemake(folder, "--dry-run", *arguments)
        wall, cpu = snakemake(folder, *arguments)
        _, resume = snakemake(folder, "--dry-run", *arguments)
    times = f"plan {plan:5.1f}  run {wall:6.1f} wall {cpu:6.1f} CPU  resume check {resume:5.1f}"
    print(f"{f'{tasks}×{steps}':8} {jobs:6} jobs  {times}  {1000 * cpu / jobs:5.1f} ms CPU a job")


def closed_loop(tasks: int, steps: int, latency: float, in_flight: int) -> None:
    """Part 2."""

    def reply(request):
        return tool_call({"action": "tap", "coordinate": [request.turn, 7]})

    with FakeOpenAI(reply, latency_s=latency) as server, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tasks(folder / "set", "online", tasks, steps)
        end_point = {"base_url": server.base_url, "api_key_env": None}
        config = {
            "model": "edit",
            "planner": "openai",
            "tasks": "set",
            "tasks_in_flight": in_flight,
            "planners": {"openai": {"kind": "openai", "model": "test", **end_point}},
            "models": {
                "edit": {"family": "images_api", "model": "test", "endpoint": server.base_url, "api_key_env": None}
            },
        }
        (folder / "bench.yaml").write_text(json.dumps(config))
        wall, _ = snakemake(folder, "--configfile", "bench.yaml")
        ours = wall - snakemake(folder, "--dry-run", "--configfile", "bench.yaml")[0]
        seen = len(server.requests)
        plain = plain_loop(server.base_url, folder / "set", tasks, steps, in_flight)
        assert len(server.requests) == 2 * seen == 4 * tasks * steps, (seen, len(server.requests))
    ideal = -(-tasks // in_flight) * steps * 2 * latency
    print(f"{tasks} tasks × {steps} steps, {latency} s a call, {in_flight} in flight; latency alone {ideal:.1f} s")
    print(f"guiloop {wall:.1f} s, of it running {ours:.1f} s; plain thread pool {plain:.1f} s")
    print(f"ratio of the running part {ours / plain:.3f}, of the whole command {wall / plain:.3f}")


def plain_loop(base_url: str, tasks_folder: Path, tasks: int, steps: int, in_flight: int) -> float:
    """A thread pool over tasks: ask, predict, next; the pictures stay in memory. Returns wall seconds."""
    import httpx2

    client = ChatClient(base_url, "test", None)
    http = httpx2.Client(trust_env=False)

    def one(number: int) -> None:
        frame = (tasks_folder / f"online_data/t{number:03d}/initial.png").read_bytes()
        for step in range(steps):
            content = [text_part(f"turn {step + 1}"), image_part(frame)]
            client.complete([{"role": "user", "content": content}], temperature=1.0, max_tokens=10)
            files = {"image": ("frame.png", frame, "image/png")}
            answer = http.post(f"{base_url}/images/edits", data={"model": "test", "prompt": "next"}, files=files)
            frame = base64.b64decode(answer.json()["data"][0]["b64_json"])

    started = time.monotonic()
    with ThreadPoolExecutor(in_flight) as pool:
        list(pool.map(one, range(tasks)))
    return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", default=["20x10", "100x15", "200x25"], help="tasks x steps of part 1")
    parser.add_argument("--tasks", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--latency", type=float, default=0.5, help="seconds a call")
    parser.add_argument("--in-flight", type=int, default=8)
    arguments = parser.parse_args()
    os.environ.setdefault("PYTHONPATH", str(REPOSITORY))
    for shape in arguments.shapes:
        per_job(*map(int, shape.split("x")))
    if arguments.tasks:
        closed_loop(arguments.tasks, arguments.steps, arguments.latency, arguments.in_flight)


if __name__ == "__main__":
    main()
