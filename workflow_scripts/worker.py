"""A heavy job as a process of its own: `run` starts it and waits, `serve` is its main function.

The process that plans stays small (no torch), a crash costs one job, and nothing outlives its starter: a worker ends
when the process that started it is gone, however that ended. SIGTERM, SIGINT and SIGUSR1 ask a worker to stop; it does
so at the next point where everything is on disk (`stopping`, `Stopped`), at once when asked a second time. Under SLURM
the starter asks `warn_s` before the job's time limit, and the job goes back into the queue.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import slurm
from .failures import Failure, InfrastructureFailure, InvalidInput
from .records import read_json, write_bytes

PARENT_VARIABLE = "GUILOOP_WORKER_PARENT"
REPORT_VARIABLE = "GUILOOP_WORKER_REPORT"
POLL_S = 0.1
ASK_LIMIT_S = 20.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

_asked = threading.Event()


class Stopped(Exception):
    """Raised in a worker where it was asked to stop and everything made so far is on disk."""


# --- in the process that plans ----------------------------------------------------------------------------------------


def run(
    module: str,
    arguments: Sequence[str],
    repository: str,
    log: Path,
    stopping: Callable[[], bool] = lambda: False,
    warn_s: float = 120.0,
) -> str:
    """Runs ``python -m module arguments`` with this interpreter, its output appended to `log`; returns its last word.

    Args:
        repository: folder from which `module` is imported.
        stopping: whether the worker is to be asked to stop.
        warn_s: seconds before the SLURM job's time limit at which it is asked, too; it is killed after three quarters
            of as many.

    Raises InfrastructureFailure with the worker's own code and message; code ``stopped`` where it was asked to stop.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    report = log.with_suffix(".report.json")
    report.unlink(missing_ok=True)
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid()), REPORT_VARIABLE: str(report.absolute())}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [repository, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", module, *arguments]
    with open(log, "ab") as stream:
        stream.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(command)}\n".encode())
        stream.flush()
        # A session of its own: what the terminal or a scheduler sends to the group reaches it once, through here.
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    limited = _wait(child, stopping, warn_s)
    said: dict[str, Any] = read_json(report) if report.is_file() else {}
    report.unlink(missing_ok=True)
    if child.returncode == 0:
        return str(said.get("message", "done"))
    if said.get("code") == "stopped" and limited and said["detail"].get("progress") and slurm.requeue():
        said["message"] += "; the job is near its time limit and back in the queue"
    if said:
        raise InfrastructureFailure(said["code"], said["message"], log=str(log), **said["detail"])
    how = f"killed by {signal.Signals(-child.returncode).name}" if child.returncode < 0 else f"exit {child.returncode}"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
    raise InfrastructureFailure("worker_died", f"{module} ended without a word ({how}); the end of {log}:\n{tail}")


def _wait(child: subprocess.Popen[bytes], stopping: Callable[[], bool], warn_s: float) -> bool:
    """Waits for its end; returns whether it was asked to stop because of the job's time limit."""
    limited, told, asked, kill_at = False, False, -ASK_LIMIT_S, float("inf")
    while child.poll() is None:
        now = time.monotonic()
        if not told and now - asked >= ASK_LIMIT_S:
            asked, left = now, slurm.seconds_left()
            limited = left is not None and left <= warn_s + ASK_LIMIT_S / 2
        if not told and (limited or stopping()):
            told, kill_at = True, now + 0.75 * warn_s
            child.terminate()
        if now > kill_at:
            child.kill()
        time.sleep(POLL_S)
    return limited


# --- in the worker ----------------------------------------------------------------------------------------------------


def serve(work: Callable[[], str]) -> int:
    """Runs `work` as the whole of this process and reports how it went; the exit status.

    `work` returns a summary; it raises Stopped(message, progress) where it was asked to stop.
    """
    for number in SIGNALS:
        signal.signal(number, _stop)
    _end_with_parent()
    try:
        _report("done", work(), {})
        return 0
    except Stopped as stop:
        progress = bool(stop.args[1]) if len(stop.args) > 1 else False
        _report("stopped", str(stop.args[0]) if stop.args else "was told to end", {"progress": progress})
    except KeyboardInterrupt:
        _report("stopped", "was told to end at once; what is on disk is kept", {"progress": False})
    except Failure as failure:
        traceback.print_exc()
        _report(failure.code, failure.message, failure.detail)
    except InvalidInput as error:
        print(error, file=sys.stderr)
        _report("invalid_input", str(error), {})
    except Exception as error:
        traceback.print_exc()
        _report(type(error).__name__, str(error), {})
    return 1


def stopping() -> bool:
    """Whether this worker was asked to stop."""
    return _asked.is_set()


def _stop(number: int, frame: Any) -> None:
    if _asked.is_set():
        raise KeyboardInterrupt
    _asked.set()
    print(f"asked to stop ({signal.Signals(number).name})", file=sys.stderr, flush=True)


def _end_with_parent() -> None:
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(0.5)
        # Whoever would read the results is gone. Every file is written by renaming, so nothing is lost at any moment.
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _report(code: str, message: str, detail: dict[str, Any]) -> None:
    print(f"{code}: {message}", file=sys.stderr, flush=True)
    if path := os.environ.get(REPORT_VARIABLE):
        record = {"code": code, "message": message, "detail": detail}
        write_bytes(path, json.dumps(record, ensure_ascii=False, default=str).encode())
