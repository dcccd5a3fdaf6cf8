"""Speed-up of shards: a closed loop with a fixed latency per decision on a local SLURM, in 1, 2 and 4 shards.

    python benchmarks/shards.py                       # root and Debian's SLURM packages (tests/slurm/cluster.py)
    python benchmarks/shards.py --tasks 16 --latency 1

The planner answers after a fixed time and the world model repeats the screen, so all time beyond the latencies is
overhead. A shard works on one task at a time, as a GPU does on one picture. "work" is the longest shard's own time,
"run" is the wall time of the submitting command, start of jobs and polling included. Left out: GPUs, model loading.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.servers.fake_openai import FakeOpenAI, tool_call
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import ClusterWorkflow
from tests.workflow.conftest import write_tasks


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description="Speed-up of shards on a local SLURM.")
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--latency", type=float, default=1.0, help="seconds of a decision")
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    steps = options.tasks * options.steps
    cluster = Cluster(Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp")))
    try:
        cluster.start()
        print(
            f"{options.tasks} tasks of {options.steps} decisions of {options.latency:g} s, one task at a time per shard"
        )
        print("shards  work s  speed-up  overhead ms per step  run s")
        first = 0.0
        with FakeOpenAI(lambda request: tool_call({"action": "wait"}), latency_s=options.latency) as server:
            for shards in options.shards:
                work, run = measured(cluster, server, options, shards)
                first = first or work
                overhead = 1000 * (work * shards - steps * options.latency) / steps
                print(f"{shards:6}  {work:6.1f}  {first / work:8.2f}  {overhead:20.0f}  {run:5.1f}", flush=True)
    finally:
        cluster.stop()


def measured(cluster: Cluster, server: FakeOpenAI, options: argparse.Namespace, shards: int) -> tuple[float, float]:
    """Seconds of the longest shard and of the whole command."""
    workflow = ClusterWorkflow(Path(tempfile.mkdtemp(prefix="shards-")), cluster)
    write_tasks(workflow.directory / "set", "online", options.tasks, options.steps)
    planner = {"kind": "openai", "model": "fixed", "base_url": server.base_url, "api_key_env": None}
    config = workflow.config(shards=shards, planner="openai", planners={"openai": planner}, tasks_in_flight=1)
    job = {"default": {"partition": "gpu", "runtime_min": 30, "mem_mb": 500, "cpus": 1}}
    fields = json.loads((workflow.directory / "run.json").read_text())
    (workflow.directory / "run.json").write_text(json.dumps({**fields, "slurm": job}))
    started = time.monotonic()
    workflow.ok(*config)
    run = time.monotonic() - started
    manifests = (workflow.directory / "results/shards").rglob("*.json")
    return max(json.loads(path.read_text())["seconds"] for path in manifests), run


if __name__ == "__main__":
    main()
