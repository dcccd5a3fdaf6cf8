"""A real SLURM cluster on this machine: slurmctld and four slurmd with a fake GPU each, without systemd.

Everything lies in one folder: key, sockets, state, spool, logs. Needs root (slurmd starts jobs as their user, mknod
makes the fake GPUs) and Debian's packages slurmctld, slurmd, slurm-client and munge. Left out: accounting, cgroups
(memory is not enforced), several hosts.

    python -m tests.slurm.cluster up /tmp/c     starts it and prints what to export
    python -m tests.slurm.cluster down /tmp/c
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "sinfo", "sbatch", "srun")
SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

SLURM_CONF = """\
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool.%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd.%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=5,bf_interval=5,sched_min_interval=0
MinJobAge=300
KillWait=5
SlurmdTimeout=60
GresTypes=gpu
LaunchParameters=use_interactive_step
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{nodes}
PartitionName=gpu Nodes=n[1-2] Default=YES MaxTime=60 State=UP
PartitionName=spare Nodes=n[3-4] MaxTime=60 State=UP
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 Boards=1 SocketsPerBoard=1 "
    "CoresPerSocket=4 ThreadsPerCore=1 RealMemory=8000 Gres=gpu:1 State=UNKNOWN"
)

NODES = ("n1", "n2", "n3", "n4")

# The plugin's job step removes SLURM_CONF from the environment of its srun. On a cluster slurm.conf lies where srun
# looks for it anyway; here a wrapper puts it back from a name that survives.
SRUN = """\
#!/bin/sh
SLURM_CONF=${SLURM_CONF:-$LOCAL_SLURM_CONF} exec %s "$@"
"""


class Unavailable(Exception):
    """Why there can be no cluster here."""


@dataclass
class Cluster:
    """The cluster of folder `root` (a short path: sockets lie in it); `port` is the first of five."""

    root: Path
    port: int = field(default_factory=lambda: free_ports(1 + len(NODES)))
    pids: dict[str, int] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs on top of its environment."""
        conf = str(self.root / "slurm.conf")
        path = os.pathsep.join([str(self.root / "bin"), os.environ.get("PATH", "")])
        return {"SLURM_CONF": conf, "LOCAL_SLURM_CONF": conf, "PATH": path}

    def start(self) -> None:
        """Starts all daemons and waits until all nodes are idle. Raises Unavailable."""
        if missing := [name for name in PROGRAMS if not shutil.which(name, path=SEARCH)]:
            raise Unavailable(
                f"{', '.join(missing)} not found: "
                "apt-get install --no-install-recommends slurmctld slurmd slurm-client munge"
            )
        if os.getuid() != 0:
            raise Unavailable("a SLURM of one's own needs root")
        host = socket.gethostname().split(".")[0]
        for name in ("run", "log", "state", "munge", "bin", *(f"spool.{node}" for node in NODES)):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        nodes = "\n".join(NODE.format(name=name, host=host, port=self.port + int(name[1:])) for name in NODES)
        conf = self.root / "slurm.conf"
        conf.write_text(SLURM_CONF.format(host=host, port=self.port, root=self.root, nodes=nodes))
        gpu = self.root / "gpu0"
        if not gpu.exists():
            try:
                os.mknod(gpu, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # behaves like /dev/null; slurmd wants a device
            except OSError as error:
                raise Unavailable(f"no fake GPU can be made (mknod: {error})") from error
        (self.root / "gres.conf").write_text(f"NodeName=n[1-4] Name=gpu File={gpu}\n")
        srun = self.root / "bin" / "srun"
        srun.write_text(SRUN % shutil.which("srun", path=SEARCH))
        srun.chmod(0o755)
        self._start_munge()
        self._daemon("slurmctld", "slurmctld")
        for node in NODES:
            self.start_node(node)
        self._wait(lambda: self.states() == ["idle"] * len(NODES), "the nodes did not come up")

    def start_node(self, name: str) -> None:
        """Starts a node's slurmd."""
        self._daemon(f"slurmd.{name}", "slurmd", "-N", name)

    def stop_node(self, name: str) -> None:
        """kill -9 of a node's slurmd and of the jobs on it, as if it had lost power."""
        pid = self.pids.pop(f"slurmd.{name}")
        _signal(pid, signal.SIGKILL)
        for process in _supervisors(self.root / f"spool.{name}"):
            _signal(process, signal.SIGKILL)

    def stop(self) -> None:
        """Cancels all jobs and stops what `start` started."""
        if _alive(self.pids.get("slurmctld", 0)):  # clients of a dead one would hang
            self.client("scancel", "--user=root", check=False)
            end = time.monotonic() + 15
            while self.client("squeue", "-h", check=False).stdout.strip() and time.monotonic() < end:
                time.sleep(0.2)
        for name in sorted(self.pids, key=lambda name: ("slurmd" not in name, name == "munged")):
            _signal(self.pids[name], signal.SIGTERM)
        for pid in self.pids.values():
            for _ in range(100):
                if not _alive(pid):
                    break
                time.sleep(0.1)
            else:
                _signal(pid, signal.SIGKILL)
        self.pids.clear()
        for node in NODES:
            for process in _supervisors(self.root / f"spool.{node}"):
                _signal(process, signal.SIGKILL)

    def client(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs one of SLURM's commands."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=check, env=environment)

    def states(self) -> list[str]:
        """The nodes' states."""
        return self.client("sinfo", "-h", "-N", "-o", "%T", check=False).stdout.split()

    def running(self, node: str) -> list[str]:
        """Ids of the jobs that run on a node."""
        return self.client("squeue", "-h", "-t", "RUNNING", "-w", node, "-o", "%i").stdout.split()

    def _start_munge(self) -> None:
        folder = self.root / "munge"
        folder.chmod(0o755)
        key = folder / "key"
        if not key.exists():
            key.touch(0o600)
            key.write_bytes(os.urandom(128))
        names = {"key-file": "key", "socket": "socket", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={folder / name}" for option, name in names.items()]
        self._daemon("munged", "munged", "--force", *options, f"--pid-file={self.root / 'run/munged.pid'}")

    def _daemon(self, name: str, program: str, *arguments: str) -> None:
        pid_file = self.root / "run" / f"{name}.pid"
        pid_file.unlink(missing_ok=True)
        path = shutil.which(program, path=SEARCH)
        assert path is not None
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            [path, *arguments], env=environment, capture_output=True, text=True, timeout=30, check=False
        )
        self._wait(lambda: pid_file.is_file() and pid_file.read_text().strip(), f"{name}: {done.stderr}")
        self.pids[name] = int(pid_file.read_text())

    def _wait(self, condition, message: str, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                logs = "\n".join(path.read_text()[-1500:] for path in (self.root / "log").glob("*.log"))
                raise RuntimeError(f"{message}\n{logs}")
            time.sleep(0.1)


def free_ports(count: int) -> int:
    """The first of `count` free ports in a row."""
    for first in range(26817, 32000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("", port))
        except OSError:
            continue
        return first
    raise Unavailable("no free ports")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except OSError:
        return False


def _signal(pid: int, number: int) -> None:
    if _alive(pid):
        os.kill(pid, number)


def _supervisors(spool: Path) -> list[int]:
    """The slurmstepd of a node's jobs (they work in its spool folder), and all below them."""
    import psutil

    found: list[int] = []
    for process in psutil.process_iter(["name", "cwd"]):
        if process.info["name"] == "slurmstepd" and process.info["cwd"] == str(spool):
            found += [*(child.pid for child in process.children(recursive=True)), process.pid]
    return found


def main() -> None:
    """See the module."""
    action, root = sys.argv[1], Path(sys.argv[2]).absolute()
    cluster = Cluster(root)
    if action == "up":
        cluster.start()
        for name, value in cluster.environment.items():
            print(f"export {name}={value}")
    else:
        for path in (root / "run").glob("*.pid"):
            cluster.pids[path.stem] = int(path.read_text())
        cluster.stop()


if __name__ == "__main__":
    main()
