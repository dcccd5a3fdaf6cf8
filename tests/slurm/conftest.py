"""A cluster for the session, and a workflow that submits to it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.conftest import REPOSITORY, Workflow

from .cluster import Cluster, Unavailable


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The running cluster. Without one the tests are skipped, loudly; on CI (CI=true) that is a failure."""
    root = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    started = Cluster(root)
    try:
        started.start()
    except Unavailable as reason:
        shutil.rmtree(root)
        message = f"NO SLURM: the tests of cluster runs prove nothing here: {reason}"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    except BaseException:
        started.stop()
        raise
    yield started
    started.stop()
    shutil.rmtree(root)


@dataclass
class ClusterWorkflow(Workflow):
    """Runs snakemake with profiles/slurm on `cluster`."""

    cluster: Cluster

    def command(self, *arguments: str, cores: int = 2) -> list[str]:
        profile = ["--profile", str(REPOSITORY / "profiles/slurm"), "--slurm-init-seconds-before-status-checks", "1"]
        return super().command(*profile, *arguments, cores=cores)

    def run(self, *arguments: str, cores: int = 2, **env: str) -> subprocess.CompletedProcess[str]:
        return super().run(*arguments, cores=cores, **self.cluster.environment, **env)

    def start(self, *arguments: str, cores: int = 2, **env: str) -> subprocess.Popen[str]:
        return super().start(*arguments, cores=cores, **self.cluster.environment, **env)

    def output(self) -> str:
        """What the last run that was started has printed."""
        return max(self.directory.glob("run-*.log")).read_text()

    def config(self, **changes: Any) -> list[str]:
        """Arguments for a run of the `rollouts` on small jobs with a fake GPU each."""
        job = {"partition": "gpu", "runtime_min": 10, "mem_mb": 500, "cpus": 1}
        fields = {
            "model": "copy_last",
            "tasks": "set",
            "shards": 2,
            "slurm": {"default": job, "cpu_shard": {"gres": "gpu:1"}, "warn_s": 10},
        }
        (self.directory / "run.json").write_text(json.dumps({**fields, **changes}))
        return ["rollouts", "--configfile", "run.json"]


@pytest.fixture
def workflow(cluster: Cluster, tmp_path: Path) -> ClusterWorkflow:
    return ClusterWorkflow(tmp_path, cluster)
