"""Starts model servers on first need, shares them, and finds them again. Client side: no torch, nothing resident.

One server per model and device slot on a node. Whoever needs one first starts it, under a lock that dies with its
holder; everybody else of this user on this node shares it. A server lives on by its users' leases (`leases`): when
the last of them is gone, killed ones included, it goes within seconds, and when it is idle it goes too. A dead server
is started again by the next request. Servers speak HTTP on a Unix socket in a private folder, with a token of their
own.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..failures import InfrastructureFailure
from ..records import write_json
from . import leases
from .client import Endpoint, get_json, post_empty
from .spec import ServerSpec

log = logging.getLogger(__name__)

OWNER_VARIABLE = "GUILOOP_OWNER_PID"
"""Environment variable naming the run's main process, which leases the servers as well as the process that asks."""
TAIL_LINES = 30


@dataclass(frozen=True, slots=True)
class Slot:
    """A device, or a group of devices, that holds one copy of a model.

    `name` is the same for everybody on the node (a GPU's UUID, where it is a GPU); `environment` confines the server
    to it.
    """

    name: str
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One visible GPU: what CUDA_VISIBLE_DEVICES calls it, its UUID, and its memory in bytes (0 where unknown)."""

    entry: str
    uuid: str
    memory: int


def visible_gpus() -> list[Gpu]:
    """The GPUs this process may use, in CUDA's order; empty without a driver or a GPU. Takes no GPU memory."""
    return list(_gpus(os.environ.get("CUDA_VISIBLE_DEVICES")))


@functools.cache  # asked for at every step, and nvidia-smi takes a second on some nodes
def _gpus(visible: str | None) -> tuple[Gpu, ...]:
    command = ["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    found: dict[str, Gpu] = {}
    for line in text.splitlines():
        index, uuid, total = (part.strip() for part in line.split(","))
        found[index] = Gpu(index, uuid, int(total) << 20 if total.isdigit() else 0)
    if visible is None:
        return tuple(found.values())
    by_uuid = {gpu.uuid: gpu for gpu in found.values()}
    chosen = [entry.strip() for entry in visible.split(",") if entry.strip()]
    # Anything else is a MIG slice, which nvidia-smi does not list this way.
    return tuple(found.get(entry) or by_uuid.get(entry) or Gpu(entry, entry, 0) for entry in chosen if entry != "-1")


def slots(device: str, devices: Sequence[int] | None, split: bool) -> list[Slot]:
    """The slots of a row: one per device, or one over all of them where `split`.

    Args:
        devices: positions among the visible GPUs, None for all; on `cpu` it numbers several servers.

    Raises InfrastructureFailure where a device is not there.
    """
    if device == "cpu":
        return [Slot(f"cpu-{number}") for number in (devices or [0])]
    gpus = visible_gpus()
    if not gpus:
        raise InfrastructureFailure("no_cuda", "no CUDA device is visible; set `device: cpu` or run on a GPU node")
    wanted = list(range(len(gpus))) if devices is None else list(devices)
    if max(wanted) >= len(gpus):
        raise InfrastructureFailure(
            "no_such_device", f"`devices: {wanted}` asks for device {max(wanted)}, {len(gpus)} are visible"
        )
    chosen = [gpus[number] for number in wanted]
    groups = [chosen] if split else [[gpu] for gpu in chosen]
    return [
        Slot("+".join(g.uuid for g in group), {"CUDA_VISIBLE_DEVICES": ",".join(g.entry for g in group)})
        for group in groups
    ]


_flying: Counter[Path] = Counter()
_turn = 0
_choosing = threading.Lock()
_children: dict[int, subprocess.Popen[bytes]] = {}


@contextlib.contextmanager
def borrowed(
    spec: ServerSpec, among: Sequence[Slot], *, log_folder: str | Path, start_timeout_s: float
) -> Iterator[Endpoint]:
    """A ready server of the slot with the least to do, for one request; the count is given back at the end.

    Raises InfrastructureFailure like `ensure_server`.
    """
    slot = _least_busy(spec, among)
    folder = _folder(spec, slot)
    try:
        yield ensure_server(spec, slot, log_folder=log_folder, start_timeout_s=start_timeout_s)
    finally:
        with _choosing:
            _flying[folder] -= 1


def _least_busy(spec: ServerSpec, among: Sequence[Slot]) -> Slot:
    """A ready and free slot, else one without a server, else the one with the fewest requests; ties take turns."""
    global _turn
    states = {slot.name: _pending(_folder(spec, slot)) for slot in among} if len(among) > 1 else {}
    with _choosing:
        _turn += 1

        def burden(position: int) -> tuple[int, int]:
            slot = among[position]
            flying, pending = _flying[_folder(spec, slot)], states.get(slot.name)
            load = max(flying, pending or 0)
            return (load if pending is not None or load == 0 else load + 1, (position - _turn) % len(among))

        slot = among[min(range(len(among)), key=burden)]
        _flying[_folder(spec, slot)] += 1
        return slot


def _pending(folder: Path) -> int | None:
    """Requests at the folder's server, None where there is no ready one."""
    record = _record(folder)
    body = _health(record) if record else None
    return int(body["pending"]) if body and body["status"] == "ready" else None


def ensure_server(
    spec: ServerSpec, slot: Slot, *, log_folder: str | Path = "results/logs/servers", start_timeout_s: float = 1800.0
) -> Endpoint:
    """The ready server of `spec` on `slot`, started if need be.

    Raises InfrastructureFailure: what the server says itself (weights_missing, device_memory, missing_package …), or
    server_died, server_never_healthy; each with the tail of its log.
    """
    folder = _folder(spec, slot)
    leases.hold(folder)
    if owner := os.environ.get(OWNER_VARIABLE):
        leases.hold(folder, int(owner))
    since, deadline, told = time.time(), time.monotonic() + start_timeout_s, time.monotonic()
    while True:
        record = _record(folder)
        body = _health(record) if record else None
        if record and body and body["status"] == "ready":
            return _endpoint(record)
        _raise_if_failed(folder, since)
        with _lock(folder) as held:
            if held and _process(folder) is None:
                _start(spec, slot, folder, Path(log_folder))
            elif held and time.monotonic() > deadline:
                _end(folder)
                seconds = f"{start_timeout_s:.0f} s"
                raise _fail(folder, "server_never_healthy", f"the model server was not ready within {seconds}")
            if held:
                _watch_start(spec, slot, folder, deadline)
        if time.monotonic() > deadline + 60:
            raise _fail(folder, "server_never_healthy", "the model server did not become ready")
        if time.monotonic() - told > 15:
            told = time.monotonic()
            log.info("waiting for the model server %s on %s", spec.weights, slot.name)
        time.sleep(0.2)


def _watch_start(spec: ServerSpec, slot: Slot, folder: Path, deadline: float) -> None:
    """Waits, with the lock held, until the starting server is ready. Raises what it fails with."""
    begun, told = time.monotonic(), ""
    while time.monotonic() < deadline:
        record = _record(folder)
        body = _health(record) if record else None
        if body:
            if body["status"] == "ready":
                log.info("the model server %s on %s is ready", spec.weights, slot.name)
                return
            if body["status"] != told:
                told = body["status"]
                log.info("model server %s on %s: %s (%.0f s)", spec.weights, slot.name, told, time.monotonic() - begun)
        if _process(folder) is None:
            failure = leases.read(folder / "failure.json")
            if failure and failure["code"] == "device_memory" and _make_room(slot, folder, deadline):
                (folder / "failure.json").unlink(missing_ok=True)
                return  # the caller's loop starts it again
            if failure:
                raise _fail(folder, failure["code"], failure["message"])
            raise _fail(folder, "server_died", "the model server ended before it was ready")
        time.sleep(0.2)
    _end(folder)
    raise _fail(folder, "server_never_healthy", "the model server was not ready in time")


def _make_room(slot: Slot, folder: Path, deadline: float) -> bool:
    """Asks this user's other servers on the slot to go once they are idle; waits for one. False if there is none."""
    while time.monotonic() < deadline:
        others = [
            record
            for path in folder.parent.glob("*/server.json")
            if path.parent != folder and (record := _record(path.parent)) and record["slot"] == slot.name
        ]
        if not others:
            return False
        for record in others:
            with contextlib.suppress(OSError, _transport_error()):
                post_empty(_endpoint(record), "/quit", 5.0)
        time.sleep(1.0)
        if any(not leases.lives(record) for record in others):
            return True
        log.info("%s is taken by another model; waiting until that is idle", slot.name)
        time.sleep(2.0)
    return False


def _start(spec: ServerSpec, slot: Slot, folder: Path, log_folder: Path) -> None:
    log_folder.mkdir(parents=True, exist_ok=True)
    log_file = (log_folder / f"{spec.pipeline}-{slot.name}-{spec.key[:8]}.log").absolute()
    for name in ("failure.json", "server.json", "socket"):
        (folder / name).unlink(missing_ok=True)
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, **slot.environment, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
    write_json(folder / "spec.json", {"spec": spec.as_json(), "slot": slot.name, "log": str(log_file)})
    command = [spec.python or sys.executable, "-m", f"{__package__}.server", str(folder)]
    log.info("starting the model server %s on %s; its log: %s", spec.weights, slot.name, log_file)
    with open(log_file, "ab") as stream:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=environment,
                cwd=root,
                start_new_session=True,  # Ctrl-C in the terminal shall not take it away from a step in progress
            )
        except OSError as error:
            raise InfrastructureFailure("server_died", f"cannot run {command[0]}: {error}; see `python:`") from error
    _children[child.pid] = child
    write_json(folder / "process.json", leases.process(child.pid))


def _process(folder: Path) -> dict[str, Any] | None:
    """The folder's server process, if it lives."""
    record = leases.read(folder / "process.json")
    if record is None:
        return None
    if (child := _children.get(record["pid"])) and child.poll() is not None:
        del _children[record["pid"]]
    return record if leases.lives(record) else None


def _end(folder: Path) -> None:
    if record := _process(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(record["pid"], signal.SIGKILL)


def _record(folder: Path) -> dict[str, Any] | None:
    """The announced server of a folder, if its process lives."""
    record = leases.read(folder / "server.json")
    return record if record and leases.lives(record) else None


def _endpoint(record: dict[str, Any]) -> Endpoint:
    return Endpoint("http://server/v1", record["token"], record["socket"])


def _health(record: dict[str, Any]) -> dict[str, Any] | None:
    try:
        body = get_json(_endpoint(record), "/health", 20.0)[1]
    except (ValueError, _transport_error()):
        return None
    return body if isinstance(body, dict) and "status" in body else None


def _transport_error() -> type[Exception]:
    import httpx2

    return httpx2.TransportError


def _raise_if_failed(folder: Path, since: float) -> None:
    """Raises the failure of a start that this caller waited for, so that N waiters do not try N times."""
    path = folder / "failure.json"
    if _process(folder) is None and path.exists() and path.stat().st_mtime > since and (failure := leases.read(path)):
        raise _fail(folder, failure["code"], failure["message"])


def _fail(folder: Path, code: str, message: str) -> InfrastructureFailure:
    failure = InfrastructureFailure(code, message, log=str(_log_file(folder)), tail=_tail(folder))
    failure.args = (f"{failure.args[0]}\n  log: {_log_file(folder)}\n  " + "\n  ".join(_tail(folder)[-12:]),)
    if not (folder / "failure.json").exists():
        write_json(folder / "failure.json", {"code": code, "message": message})
    return failure


def _log_file(folder: Path) -> Path:
    return Path((leases.read(folder / "spec.json") or {}).get("log", os.devnull))


def _tail(folder: Path) -> list[str]:
    try:
        return _log_file(folder).read_text(errors="replace").splitlines()[-TAIL_LINES:]
    except OSError:
        return []


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[bool]:
    """Whether this caller alone may start the folder's server; the kernel drops the lock of a killed holder."""
    with open(folder / "lock", "ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _folder(spec: ServerSpec, slot: Slot) -> Path:
    """The private, node-local folder of this server. Raises InfrastructureFailure where somebody else made it."""
    job = os.environ.get("SLURM_JOB_ID")
    name = f"guiloop-{os.getuid()}" + (f"-{job}" if job else "")
    base = Path(tempfile.gettempdir()) / name
    if len(str(base)) > 60:  # a Unix socket's path holds 107 bytes
        base = Path("/tmp") / name
    base.mkdir(mode=0o700, exist_ok=True)
    status = base.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise InfrastructureFailure("unsafe_folder", f"{base} is not a folder of yours alone; remove it or set TMPDIR")
    import hashlib

    folder = base / hashlib.sha256(f"{spec.key} {slot.name}".encode()).hexdigest()[:16]
    (folder / "leases").mkdir(parents=True, exist_ok=True)
    return folder
