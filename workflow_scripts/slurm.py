"""What guiloop asks of SLURM: resources of each kind of job, whether it would take them, which jobs are left over.

Submitting and watching is the executor plugin's work (snakemake-executor-plugin-slurm); this module turns the
``slurm:`` block of the configuration into the resource names that the plugin reads. Left out: several clusters,
reservations, job arrays (`extra` passes any further option through).
"""

from __future__ import annotations

import getpass
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .failures import InfrastructureFailure

Kind = Literal["gpu_shard", "cpu_shard", "train"]

CLIENT_TIMEOUT_S = 30.0
"""Clients of a dead slurmctld wait for minutes."""


class SlurmJob(BaseModel):
    """What one kind of job asks for; null takes the value of `default`, and there the cluster's own."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    partition: str | None = Field(None, description="Partition (sbatch -p).")
    account: str | None = Field(None, description="Account that is charged (sbatch -A).")
    qos: str | None = Field(None, description="Quality of service (sbatch --qos).")
    constraint: str | None = Field(None, description="Features a node must have (sbatch -C), e.g. a100&80g.")
    gres: str | None = Field(None, description='GPUs (sbatch --gres), e.g. gpu:1 or gpu:a100:1; "" is none.')
    runtime_min: int | None = Field(None, ge=1, description="Time limit in minutes (sbatch -t).")
    mem_mb: int | None = Field(None, ge=1, description="Main memory in MB (sbatch --mem).")
    cpus: int | None = Field(None, ge=1, description="CPU cores (sbatch --cpus-per-task).")
    extra: str | None = Field(None, description="Further options of sbatch, as on its command line.")


NOTHING = SlurmJob.model_validate({})


class Slurm(BaseModel):
    """The ``slurm:`` block: resources of the jobs that are queued. Not part of any identity."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    default: SlurmJob = Field(NOTHING, description="What every kind of job asks for unless it says otherwise.")
    gpu_shard: SlurmJob = Field(NOTHING, description="Shards of models that need a GPU.")
    cpu_shard: SlurmJob = Field(NOTHING, description="Shards of models that need none (browser, baselines).")
    train: SlurmJob = Field(NOTHING, description="Training: collection, updates, evaluation, export.")
    warn_s: int = Field(120, ge=1, description="Seconds before its time limit at which a shard starts no further step.")

    def job(self, kind: Kind) -> SlurmJob:
        """What a kind of job asks for, `default` filled in."""
        own: SlurmJob = getattr(self, kind)
        return own.model_copy(update={k: v for k, v in self.default if getattr(own, k) is None})

    def resources(self, kind: Kind, after: Sequence[str] = ()) -> dict[str, str | int | None]:
        """The job's resources under the names that the executor plugin reads; None is left to the cluster.

        `after` names jobs that must have ended before this one starts.
        """
        job = self.job(kind)
        extra = ["--open-mode=append"]  # a job that is queued again goes on with its log
        extra += [f"--dependency=afterany:{':'.join(after)}"] if after else []
        extra += [job.extra] if job.extra else []
        return {
            "slurm_partition": job.partition,
            "slurm_account": job.account,
            "qos": job.qos,
            "constraint": job.constraint,
            "gres": job.gres or None,
            "runtime": job.runtime_min,
            "mem_mb": job.mem_mb,
            "cpus_per_task": job.cpus,
            "slurm_extra": " ".join(extra),
        }


OPTIONS = {
    "slurm_partition": "--partition",
    "slurm_account": "--account",
    "qos": "--qos",
    "constraint": "--constraint",
    "gres": "--gres",
    "runtime": "--time",
    "mem_mb": "--mem",
    "cpus_per_task": "--cpus-per-task",
}
"""Resource name → option of sbatch."""


def refusal(resources: Mapping[str, Any]) -> str | None:
    """Why SLURM would not take a job with these resources, in its own words, or None. Queues nothing; takes a second.

    Raises InfrastructureFailure where no controller answers.
    """
    given = [f"{option}={resources[name]}" for name, option in OPTIONS.items() if resources.get(name) is not None]
    extra = str(resources.get("slurm_extra") or "").split()
    done = _client(["sbatch", "--test-only", *given, *extra, "--wrap", "true"])
    if done.returncode == 0:
        # Accepted all the same by most clusters, and then it waits for ever with the reason PartitionTimeLimit.
        limit, asked = _partition_limit(resources.get("slurm_partition")), resources.get("runtime")
        if limit is None or asked is None or 60 * int(asked) <= limit:
            return None
        return f"the time limit of {asked} min is longer than the partition's {limit / 60:.0f} min"
    said = [line.removeprefix("sbatch: ").strip() for line in done.stderr.splitlines()]
    reasons = [re.sub(r"^(error|allocation failure): ", "", line) for line in said if line]
    return f"{'; '.join(dict.fromkeys(reasons))} (asked for: {' '.join(given) or 'nothing in particular'})"


def leftovers(folder: Path, prefix: str) -> list[str]:
    """Ids of this user's waiting or running jobs of a working directory whose comment begins with `prefix`.

    The executor plugin comments a job with ``rule_{rule}_wildcards_{values}``. Whoever holds the locks of what such
    jobs make knows that no living run is behind them.
    """
    layout = "%i|%Z|%k"
    done = _client(["squeue", "--noheader", f"--user={getpass.getuser()}", f"--format={layout}"])
    if done.returncode:
        raise InfrastructureFailure("slurm_unreachable", f"squeue failed: {done.stderr.strip()}")
    rows = [line.split("|", 2) for line in done.stdout.splitlines() if line.count("|") >= 2]
    here = str(folder.resolve())
    return [row[0] for row in rows if row[1] in (here, str(folder)) and row[2].startswith(prefix)]


def seconds_left() -> float | None:
    """Time until the limit of the job that this process runs in.

    Asked of the scheduler, because a limit can be changed while the job runs. None outside of a job, where there is no
    limit, and where no controller answers (work then goes on until the limit ends it).
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    try:
        done = _client(["squeue", "--noheader", f"--jobs={job}", "--format=%L"])
    except InfrastructureFailure:
        return None
    return parsed_time(done.stdout)


def parsed_time(text: str) -> float | None:
    """SLURM's ``[days-][hours:]minutes:seconds`` in seconds; None for UNLIMITED, infinite and the like."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _partition_limit(name: str | None) -> float | None:
    """Longest time that a partition (None: the default one) allows, in seconds; None where there is no limit."""
    done = _client(["sinfo", "--noheader", "--format=%P %l"])
    for line in done.stdout.splitlines():
        partition, _, limit = line.partition(" ")
        if partition.rstrip("*") == name or (name is None and partition.endswith("*")):
            return parsed_time(limit)
    return None


def requeue() -> bool:
    """Puts the job that this process runs in back into the queue, which ends it; False where SLURM refuses."""
    return _client(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]]).returncode == 0


HOPELESS = frozenset(
    {
        "AccountNotAllowed",
        "AssocGrpCPUMinutesLimit",
        "AssocMaxWallDurationPerJobLimit",
        "BadConstraints",
        "InvalidAccount",
        "InvalidQOS",
        "JobHeldAdmin",
        "JobHeldUser",
        "PartitionDown",
        "PartitionInactive",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "QOSMaxWallDurationPerJobLimit",
        "QOSNotAllowed",
        "ReqNodeNotAvail",
    }
)
"""SLURM's reasons for which a waiting job will not start by itself."""


def stuck(folder: Path) -> dict[str, list[str]]:
    """Waiting jobs of this user and working directory that will not start by themselves: reason → ids.

    Empty where no controller answers: the next look will tell.
    """
    layout = "%i|%Z|%r"
    options = ["--noheader", "--states=PENDING", f"--user={getpass.getuser()}", f"--format={layout}"]
    try:
        done = _client(["squeue", *options])
    except InfrastructureFailure:
        return {}
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        job, _, rest = line.partition("|")
        where, _, reason = rest.rpartition("|")
        name = re.split(r"[^A-Za-z]", reason)[0]
        if where in (str(folder.resolve()), str(folder)) and name in HOPELESS:
            found.setdefault(name, []).append(job)
    return found


def _client(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        message = f"{command[0]} is not installed on this node; submit from a node that has SLURM's commands"
        raise InfrastructureFailure("no_slurm", message) from error
    except subprocess.TimeoutExpired as error:
        message = f"no answer to {command[0]} within {CLIENT_TIMEOUT_S:.0f} s: is slurmctld up (scontrol ping)?"
        raise InfrastructureFailure("slurm_unreachable", message) from error
