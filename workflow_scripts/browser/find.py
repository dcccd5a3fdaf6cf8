"""Which browser renders: an installed Chromium is used as it is, and the set-up script installs one where none is.

Order: the path in GUILOOP_BROWSER; a headless shell (Playwright's own build, else the system's), which costs a quarter
of the CPU time of the full browser for a fresh page; then any full Chromium or Chrome. Left out: browsers inside a
snap, which cannot read the bundled fonts, and everything that is not Chromium.

As a program: ``python -m workflow_scripts.browser.find [--install]`` prints the browser found and its version.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..failures import InfrastructureFailure

VARIABLE = "GUILOOP_BROWSER"
DRIVER_COMMAND = "apt-get install -y --no-install-recommends libatomic1"
INSTALL_COMMANDS = ("playwright install --only-shell chromium", "apt-get install chromium-headless-shell")

_SHELLS = (
    "chromium-headless-shell",
    "/usr/lib/chromium/chromium-headless-shell",
    "/usr/lib64/chromium-browser/headless_shell",
    "chrome-headless-shell",
    "headless_shell",
)
_BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "/opt/google/chrome/chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "microsoft-edge",
)
_PLAYWRIGHT_NAMES = ("chrome-headless-shell", "headless_shell", "chrome", "Chromium", "Google Chrome for Testing")


@dataclass(frozen=True)
class Browser:
    """A browser executable and where it comes from (``GUILOOP_BROWSER``, ``playwright`` or ``system``)."""

    path: Path
    source: str

    def version(self) -> str:
        """What ``--version`` prints, e.g. ``Chromium 156.0.1.2``.

        Raises InfrastructureFailure('browser_unavailable').
        """
        try:
            done = subprocess.run([self.path, "--version"], capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InfrastructureFailure("browser_unavailable", f"{self.path} does not start: {error}") from error
        if done.returncode != 0:
            raise InfrastructureFailure(
                "browser_unavailable",
                f"{self.path} --version ended with status {done.returncode}: {done.stderr.strip()[-500:]}",
                stderr=done.stderr[-2000:],
            )
        return done.stdout.strip()


def find_browser() -> Browser:
    """The browser to use.

    Raises InfrastructureFailure('browser_missing'), whose message names the installing commands.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        path = shutil.which(chosen)
        if path is None:
            raise InfrastructureFailure(
                "browser_missing", f"{VARIABLE}={chosen} is no executable file; correct or unset it", path=chosen
            )
        return Browser(Path(path), VARIABLE)
    for browser in _candidates():
        if not _is_snap(browser.path):
            return browser
    raise InfrastructureFailure(
        "browser_missing",
        "no Chromium was found. Install one: `" + "`, or as root on Debian `".join(INSTALL_COMMANDS) + "`; or set "
        f"{VARIABLE} to the path of a Chromium or Chrome (one from a snap cannot be used)",
    )


def _candidates() -> Iterator[Browser]:
    yield from _playwright("chromium_headless_shell-*")
    yield from _system(_SHELLS)
    yield from _playwright("chromium-*")
    yield from _system(_BROWSERS)


def _playwright(pattern: str) -> Iterator[Browser]:
    """Playwright's downloaded builds, newest first."""
    given = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    home = Path.home()
    folders = [Path(given)] if given else [home / ".cache/ms-playwright", home / "Library/Caches/ms-playwright"]
    for folder in folders:
        builds = [build for build in folder.glob(pattern) if (build / "INSTALLATION_COMPLETE").exists()]
        for build in sorted(builds, key=lambda path: int(re.sub(r"\D", "", path.name) or 0), reverse=True):
            for name in _PLAYWRIGHT_NAMES:
                for path in sorted(build.rglob(name)):
                    if path.is_file() and os.access(path, os.X_OK):
                        yield Browser(path, "playwright")


def _system(names: tuple[str, ...]) -> Iterator[Browser]:
    for name in names:
        path = shutil.which(name)
        if path is not None:
            yield Browser(Path(path), "system")


def _is_snap(path: Path) -> bool:
    """Whether a path is a snap's entry point or a distribution's script that calls one."""
    if "snap" in path.parts or path.resolve().name == "snap":
        return True
    with open(path, "rb") as stream:
        head = stream.read(4096)
    return head.startswith(b"#!") and b"/snap/" in head


def check_driver() -> None:
    """Starts Playwright's bundled Node.js, which needs a library (libatomic) that a minimal system lacks.

    Raises InfrastructureFailure('driver_unavailable') with the mending command.
    """
    import playwright

    node = Path(playwright.__file__).parent / "driver" / "node"
    try:
        done = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60, check=False)
        said, good = done.stderr.strip(), done.returncode == 0
    except (OSError, subprocess.TimeoutExpired) as error:
        said, good = str(error), False
    if not good:
        raise InfrastructureFailure(
            "driver_unavailable",
            f"Playwright's Node.js does not start: {said[-500:]}. On Debian or Ubuntu, as root: `{DRIVER_COMMAND}`",
        )


def _mend_driver() -> None:
    """Installs what the driver lacks, as root on Debian; else raises as `check_driver` does."""
    try:
        check_driver()
    except InfrastructureFailure:
        if not _apt():
            raise
        _run(["apt-get", "update", "-qq"])
        _run(DRIVER_COMMAND.split())
        check_driver()


def _apt() -> bool:
    return bool(shutil.which("apt-get")) and os.geteuid() == 0


def _run(command: list[str]) -> int:
    print("running:", " ".join(command), file=sys.stderr, flush=True)
    return subprocess.run(command, stdout=sys.stderr, check=False).returncode


def install() -> Browser:
    """Installs a headless Chromium where none is found and returns it; an installed one is left as it is.

    Tries Playwright's download, then, as root, apt. Raises InfrastructureFailure('browser_missing') with what was
    tried.
    """
    try:
        return find_browser()
    except InfrastructureFailure:
        if os.environ.get(VARIABLE):
            raise
    commands = [[sys.executable, "-m", "playwright", *INSTALL_COMMANDS[0].split()[1:]]]
    if _apt():
        commands.append(["apt-get", "update", "-qq"])
        commands += [
            ["apt-get", "install", "-y", "--no-install-recommends", package]
            for package in ("chromium-headless-shell", "chromium")
        ]
    tried = []
    for command in commands:
        status = _run(command)
        tried.append(f"`{' '.join(command)}` ended with status {status}")
        try:
            return find_browser()
        except InfrastructureFailure:
            continue
    raise InfrastructureFailure(
        "browser_missing",
        "no Chromium could be installed: "
        + "; ".join(tried)
        + f". Install a Chromium or Chrome by hand and, if it lies elsewhere, set {VARIABLE} to its path",
    )


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns the exit status: 0 found, 1 not found or not startable."""
    parser = argparse.ArgumentParser(prog="python -m workflow_scripts.browser.find", description="Find the browser.")
    parser.add_argument("--install", action="store_true", help="install one when none is found")
    options = parser.parse_args(arguments)
    try:
        if options.install:
            _mend_driver()
        else:
            check_driver()
        browser = install() if options.install else find_browser()
        print(f"{browser.path} ({browser.version()}, {browser.source})")
    except InfrastructureFailure as failure:
        print(failure.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
