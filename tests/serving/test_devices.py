"""Which GPUs a row may use, from what nvidia-smi (here a script of the same output) and the environment say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.serving.test_spec import model_folder
from workflow_scripts.failures import InfrastructureFailure
from workflow_scripts.serving import launcher
from workflow_scripts.serving.spec import ServerSpec
from workflow_scripts.worlds.images import server_faults


@pytest.fixture(autouse=True)
def _two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho '0, GPU-aaa, 81920'\necho '1, GPU-bbb, 24576'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    launcher._gpus.cache_clear()


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        (None, ["GPU-aaa", "GPU-bbb"]),
        ("1", ["GPU-bbb"]),
        ("1,0", ["GPU-bbb", "GPU-aaa"]),
        ("GPU-bbb", ["GPU-bbb"]),
        ("MIG-1234", ["MIG-1234"]),
        ("", []),
        ("-1", []),
    ],
)
def test_visible_gpus(visible: str | None, uuids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.uuid for gpu in launcher.visible_gpus()] == uuids


def test_one_slot_per_gpu_or_one_over_all() -> None:
    each = launcher.slots("cuda", None, split=False)
    assert [(slot.name, slot.environment["CUDA_VISIBLE_DEVICES"]) for slot in each] == [
        ("GPU-aaa", "0"),
        ("GPU-bbb", "1"),
    ]
    (whole,) = launcher.slots("cuda", None, split=True)
    assert whole.environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert [slot.name for slot in launcher.slots("cuda", [1], split=False)] == ["GPU-bbb"]


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(InfrastructureFailure) as caught:
        launcher.slots("cuda", [0, 2], split=False)
    assert caught.value.code == "no_such_device"


def test_a_model_that_does_not_fit_is_refused_with_the_settings_that_mend_it(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    header = json.dumps({"w": {"dtype": "BF16", "shape": [20 * 10**9], "data_offsets": [0, 0]}}).encode()
    (folder / "vae" / "more.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    spec = ServerSpec("flux2", str(folder))
    (fault,) = [fault for fault in server_faults(spec, None) if "GB" in fault]
    assert "40.0 GB" in fault  # 20 billion parameters
    assert "25.8 GB" in fault  # the smaller of the two cards
    assert "offload: model" in fault
    assert not [fault for fault in server_faults(spec, [0]) if "GB" in fault]
