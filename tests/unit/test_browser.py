"""The browser package's pure parts: choosing an executable, font settings, policies, process trees."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from workflow_scripts.browser import find, fonts, processes
from workflow_scripts.browser.page import content_security_policy, png_size
from workflow_scripts.failures import InfrastructureFailure


def executable(path: Path, text: str = "#!/bin/sh\necho Chromium 1.2.3\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose PATH and home hold nothing, and whose fixed paths are not looked at."""
    for name in ("_SHELLS", "_BROWSERS"):
        names = tuple(n for n in getattr(find, name) if not n.startswith("/"))
        monkeypatch.setattr(find, name, names)
    for variable in (find.VARIABLE, "PLAYWRIGHT_BROWSERS_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_shells_come_before_browsers_and_a_chosen_one_before_all(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []
    cache = machine / ".cache/ms-playwright"
    for path, source in (
        (machine / "bin/google-chrome", "system"),
        (machine / "bin/chromium", "system"),
        (cache / "chromium-1200/chrome-linux/chrome", "playwright"),
        (machine / "bin/chromium-headless-shell", "system"),
        (cache / "chromium_headless_shell-999/chrome-linux/headless_shell", "playwright"),
        (cache / "chromium_headless_shell-1255/chrome-headless-shell-linux64/chrome-headless-shell", "playwright"),
    ):
        executable(path)
        if source == "playwright":
            (cache / path.relative_to(cache).parts[0] / "INSTALLATION_COMPLETE").touch()
        order.append(find.find_browser())
        assert (order[-1].path, order[-1].source) == (path, source)
    monkeypatch.setenv(find.VARIABLE, str(machine / "bin/chromium"))
    assert find.find_browser().source == find.VARIABLE


def test_half_a_download_and_a_snap_are_passed_over(machine: Path) -> None:
    executable(machine / ".cache/ms-playwright/chromium_headless_shell-1255/chrome-linux/headless_shell")
    executable(machine / "bin/chromium-browser", "#!/bin/sh\nexec /snap/bin/chromium\n")
    with pytest.raises(InfrastructureFailure) as caught:
        find.find_browser()
    assert caught.value.code == "browser_missing"
    for command in find.INSTALL_COMMANDS:
        assert command in caught.value.message


def test_a_chosen_path_that_is_none_is_told(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(find.VARIABLE, "/nowhere/chrome")
    for call in (find.find_browser, find.install):
        with pytest.raises(InfrastructureFailure, match="/nowhere/chrome"):
            call()


def test_the_command_line(machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert find.main([]) == 1
    assert "playwright install --only-shell chromium" in capsys.readouterr().err
    path = executable(machine / "bin/chromium", "#!/bin/sh\necho Chromium 1.2.3\n")
    assert find.main(["--install"]) == 0
    assert capsys.readouterr().out == f"{path} (Chromium 1.2.3, system)\n"


def test_font_settings_know_the_bundled_fonts_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = fonts.fontconfig_file(tmp_path / "fallback")
    assert path.is_relative_to(tmp_path / "cache")
    root = ElementTree.parse(path).getroot()
    assert [element.text for element in root.iter("dir")] == [str(fonts.FOLDER)]
    assert not list(root.iter("include"))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert fonts.fontconfig_file(tmp_path / "fallback").is_relative_to(tmp_path / "fallback")


def test_fonts_have_their_licences() -> None:
    assert {path.suffix for path in fonts.FOLDER.iterdir() if path.is_file()} == {".ttf", ".txt", ".py"}
    assert len(list(fonts.FOLDER.glob("LICENSE-*.txt"))) == 2
    assert set(fonts.renderer_identity()) == {"renderer", "fonts"}


def test_policies() -> None:
    assert "allow-scripts" not in content_security_policy(javascript=False, allow_images=True)
    assert "script-src" not in content_security_policy(javascript=False, allow_images=True)
    assert "img-src 'none'" in content_security_policy(javascript=True, allow_images=False)
    assert content_security_policy(javascript=True, allow_images=True).startswith("default-src 'none';")


def test_bytes_that_are_no_picture_are_our_fault() -> None:
    with pytest.raises(InfrastructureFailure, match="browser_broken"):
        png_size(b"<html>")


def test_a_tree_is_found_and_killed() -> None:
    root = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & echo x; wait"], stdout=subprocess.PIPE)
    assert root.stdout is not None
    root.stdout.readline()
    members = processes.tree(root.pid)
    assert members[0] == root.pid
    assert len(members) == 3
    assert processes.resident_bytes(members) > 0
    processes.kill_tree(root.pid)
    root.wait()
    assert processes.tree(root.pid) == []
    processes.kill_tree(root.pid)


def test_importing_the_pool_does_not_import_playwright() -> None:
    program = "import sys, workflow_scripts.browser.pool; sys.exit('playwright' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0
