"""Sizes, weights on disk, and what tells two weight folders apart."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest

from workflow_scripts.serving.spec import (
    ServerSpec,
    fingerprint,
    generation_size,
    memory_needed,
    missing_weights,
    weights_identity,
)


@pytest.mark.parametrize(
    ("frame", "limits", "size"),
    [
        ((1080, 2400), (1024 * 1024, 0), (672, 1520)),
        ((720, 1280), (1024 * 1024, 0), (720, 1280)),
        ((1440, 3120), (10**8, 0), (1440, 3120)),
        ((480, 480), (10**7, 655_360), (816, 816)),
        ((64, 64), (1024 * 1024, 0), (64, 64)),
        ((10, 1000), (1024 * 1024, 0), (64, 992)),
    ],
)
def test_generation_size(frame: tuple[int, int], limits: tuple[int, int], size: tuple[int, int]) -> None:
    assert generation_size(*frame, *limits) == size
    assert all(side % 16 == 0 for side in size)


def model_folder(root: Path, values: int = 8, seed: int = 0) -> Path:
    """A folder in diffusers layout with one component of `values` numbers, made without torch."""
    (root / "vae").mkdir(parents=True)
    (root / "model_index.json").write_text(json.dumps({"_class_name": "X", "vae": ["diffusers", "AutoencoderKL"]}))
    (root / "vae" / "config.json").write_text("{}")
    data = numpy.random.default_rng(seed).standard_normal(values).astype("<f4").tobytes()
    header = json.dumps({"w": {"dtype": "F32", "shape": [values], "data_offsets": [0, len(data)]}}).encode()
    file = root / "vae" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return root


def test_weights_are_told_apart_by_content_and_never_by_place(tmp_path: Path) -> None:
    one, same, other = (model_folder(tmp_path / n, seed=s) for n, s in (("a", 0), ("b", 0), ("c", 1)))
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)
    assert weights_identity(str(one), None) == weights_identity(str(same), None)


def test_a_large_file_that_changed_anywhere_by_training_is_told_apart(tmp_path: Path) -> None:
    one, other = (model_folder(tmp_path / str(seed), values=10**6, seed=seed) for seed in (0, 1))
    assert fingerprint(one) != fingerprint(other)


def test_a_label_or_hub_id_keeps_its_identity_on_a_machine_without_the_weights(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    assert weights_identity(str(folder), "v1") == weights_identity("/nowhere/m", "v1") == {"revision": "v1"}
    assert weights_identity("org/model", None) == {"weights": "org/model", "revision": "main"}


def test_memory_is_read_from_the_headers(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", values=1000)
    assert memory_needed(folder, "float32", "none") == 4000
    assert memory_needed(folder, "bfloat16", "model") == 2000
    assert memory_needed(folder, "bfloat16", "sequential") == 0


def test_missing_weights_say_what_mends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    assert "hf download org/model --revision abc" in missing_weights("org/model", "abc")[0]
    assert "weights:" in missing_weights(str(tmp_path / "none"), None)[0]
    (tmp_path / "empty").mkdir()
    assert "model_index.json" in missing_weights(str(tmp_path / "empty"), None)[0]
    folder = model_folder(tmp_path / "m")
    assert missing_weights(str(folder), None) == []
    (folder / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    assert "vae/*.safetensors" in missing_weights(str(folder), None)[0]


def test_a_hub_id_is_found_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    store = tmp_path / "hub" / "models--org--model"
    model_folder(store / "snapshots" / "c0ffee")
    (store / "refs").mkdir()
    (store / "refs" / "main").write_text("c0ffee")
    assert missing_weights("org/model", None) == missing_weights("org/model", "c0ffee") == []


def test_servers_are_shared_by_content_not_by_patience() -> None:
    spec = ServerSpec("flux2", "org/model")
    assert spec.key == ServerSpec("flux2", "org/model", idle_s=1, batch_size=9).key
    assert spec.key != ServerSpec("flux2", "org/model", dtype="float32").key
