"""S_sig and S_dino on tiny randomly initialised backbones that are saved here and read back like any other weights."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.tiny import gui_cc_rows as rows  # noqa: E402
from workflow_scripts.failures import InfrastructureFailure  # noqa: E402
from workflow_scripts.scoring.features import FeatureModel, FeatureSettings  # noqa: E402
from workflow_scripts.serving.pipelines import declare_torchvision_operators  # noqa: E402

declare_torchvision_operators()
torch.set_num_threads(1)

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with a whole SigLIP (both towers, as on the hub) and a DINOv2."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ("siglip", "dinov2")}
    torch.manual_seed(0)
    vision = {**SMALL, "intermediate_size": 64}
    words = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "vocab_size": 99,
    }
    config = transformers.SiglipConfig(vision_config=vision, text_config=words)
    transformers.SiglipModel(config).save_pretrained(folders["siglip"])
    transformers.SiglipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folders["siglip"])
    transformers.Dinov2Model(transformers.Dinov2Config(**SMALL)).save_pretrained(folders["dinov2"])
    crop = {"height": 32, "width": 32}
    transformers.BitImageProcessor(size={"shortest_edge": 36}, crop_size=crop).save_pretrained(folders["dinov2"])
    return folders


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("frames")
    return [rows.save(folder / f"{number}.png", rows.screen(number)) for number in range(4)]


@pytest.mark.parametrize("kind", ["siglip", "dinov2"])
def test_similarities(weights, frames, kind):
    model = FeatureModel(FeatureSettings(kind, str(weights[kind]), device="cpu", batch=3))
    same = model.similarities(frames, frames)
    assert same == pytest.approx([1.0] * 4, abs=1e-5)
    others = model.similarities(frames[:3], frames[1:])
    assert all(0.0 <= value < 1.0 for value in others)
    # One at a time, in another order, from another object: the same numbers.
    again = FeatureModel(FeatureSettings(kind, str(weights[kind]), device="cpu", batch=1))
    backwards = [again.similarities([b], [a])[0] for a, b in reversed(list(pairwise(frames)))]
    assert backwards == pytest.approx(others[::-1], abs=1e-5)


def test_it_is_the_formula(weights, frames):
    """Against transformers' own towers: SigLIP's image features, DINOv2's first token."""
    from PIL import Image

    images = [Image.open(frame) for frame in frames[:2]]
    for kind, read in (
        ("siglip", lambda model, inputs: model.vision_model(**inputs).pooler_output),
        ("dinov2", lambda model, inputs: model(**inputs).last_hidden_state[:, 0]),
    ):
        model = transformers.AutoModel.from_pretrained(weights[kind]).eval()
        inputs = transformers.AutoImageProcessor.from_pretrained(weights[kind])(images=images, return_tensors="pt")
        with torch.no_grad():
            a, b = read(model, inputs)
        expected = torch.nn.functional.cosine_similarity(a, b, dim=0).clamp(0, 1).item()
        found = FeatureModel(FeatureSettings(kind, str(weights[kind]), device="cpu"))
        assert found.similarities(frames[:1], frames[1:2]) == pytest.approx([expected], abs=1e-5)


def test_weights_that_are_missing_or_of_another_model(weights, frames, tmp_path):
    for source in (tmp_path, weights["dinov2"]):
        with pytest.raises(InfrastructureFailure) as caught:
            FeatureModel(FeatureSettings("siglip", str(source), device="cpu")).features(frames[:1])
        assert caught.value.code == "features_unloadable"


def test_a_missing_screen(weights, tmp_path):
    with pytest.raises(InfrastructureFailure) as caught:
        FeatureModel(FeatureSettings("dinov2", str(weights["dinov2"]))).features([tmp_path / "none.png"])
    assert caught.value.code == "frame_missing"


def test_identity_follows_the_weights_and_not_their_place(weights, tmp_path):
    settings = FeatureSettings("dinov2", str(weights["dinov2"]))
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in weights["dinov2"].iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    elsewhere = replace(settings, source=str(copy), device="cpu", batch=2)
    assert elsewhere.identity() == settings.identity()
    (copy / "config.json").write_text("{}")
    assert elsewhere.identity() != settings.identity()
    hub = FeatureSettings("dinov2", "facebook/dinov2-giant", "abc")
    assert hub.identity() == {"kind": "dinov2", "version": 1, "source": "facebook/dinov2-giant", "revision": "abc"}
