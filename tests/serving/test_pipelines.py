"""The diffusers families on tiny real weights: rows of one call are the singles, and nothing leaks between them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

pytest.importorskip("diffusers")

from tests.serving.conftest import screen
from tests.tiny.image_edit import BUILDERS
from workflow_scripts.failures import InfrastructureFailure, ModelFailure
from workflow_scripts.serving import pipelines
from workflow_scripts.serving.pipelines import Edit, EditPipeline
from workflow_scripts.serving.spec import ServerSpec

pipelines.torch.set_num_threads(1)


@pytest.fixture(scope="module", params=BUILDERS)
def pipeline(request: pytest.FixtureRequest, spec: Callable[..., ServerSpec]) -> EditPipeline:
    return EditPipeline(spec(request.param))


def row(pipeline: EditPipeline, seed: int, **changes: Any) -> Edit:
    multiple = pipeline.spec.pipeline in ("flux2", "flux2_klein", "qwen_image_edit")
    images = (screen(seed), screen(seed + 50)) if multiple else (screen(seed),)
    edit = Edit(f"The screen after tap {seed}", images, 128, 256, seed, steps=2, guidance=2.0)
    return dataclasses.replace(edit, **changes)


def apart(one: Any, other: Any) -> int:
    """Largest difference of two pictures in grey levels."""
    return int(numpy.abs(numpy.asarray(one, int) - numpy.asarray(other, int)).max())


def test_rows_of_one_call_equal_single_calls(pipeline: EditPipeline) -> None:
    rows = [row(pipeline, seed) for seed in range(4)]
    singles = [pipeline.generate([one])[0] for one in rows]
    together = pipeline.generate(rows)
    assert [image.size for image in together] == [(128, 256)] * 4
    assert max(apart(a, b) for a, b in zip(singles, together, strict=True)) <= 1
    reordered = pipeline.generate(rows[::-1])[::-1]
    assert max(apart(a, b) for a, b in zip(singles, reordered, strict=True)) <= 1
    # … and the comparison would notice a mix-up: the rows themselves differ by far more.
    assert min(apart(a, b) for a, b in itertools.pairwise(singles)) > 10


def test_prompt_image_and_seed_matter_and_equal_requests_are_identical(pipeline: EditPipeline) -> None:
    one = row(pipeline, 1)
    (first,) = pipeline.generate([one])
    assert apart(first, pipeline.generate([one])[0]) == 0
    images = row(pipeline, 2).images
    for change in ({"prompt": "Something else entirely"}, {"images": images}, {"seed": 2}):
        assert apart(first, pipeline.generate([dataclasses.replace(one, **change)])[0]) > 1, change


def test_a_thread_that_did_not_load_it_may_not_call_it(pipeline: EditPipeline) -> None:
    caught: list[BaseException] = []

    def call() -> None:
        try:
            pipeline.generate([row(pipeline, 0)])
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert len(caught) == 1


def test_values_that_are_no_numbers_are_the_models_failure(spec: Callable[..., ServerSpec]) -> None:
    pipeline = EditPipeline(spec("kontext"))
    next(pipeline.pipe.transformer.parameters()).data.fill_(float("nan"))
    with pytest.raises(ModelFailure) as caught:
        pipeline.generate([row(pipeline, 0)])
    assert caught.value.code == "not_finite"


def test_diffusers_still_keeps_the_token_types_from_the_text_encoder(spec: Callable[..., ServerSpec]) -> None:
    """When this fails, diffusers passes mm_token_type_ids itself: take `pass_token_types` and this test away."""
    diffusers = pytest.importorskip("diffusers")
    stock = diffusers.QwenImageEditPlusPipeline.from_pretrained(spec("qwen_image_edit").weights)
    seen: list[Any] = []

    def note(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        seen.append(kwargs.get("mm_token_type_ids"))

    stock.text_encoder.register_forward_pre_hook(note, with_kwargs=True)
    before, _ = stock.encode_prompt(["A screen"], image=[screen(0)])
    assert seen == [None]
    pipelines.pass_token_types(stock)
    after, _ = stock.encode_prompt(["A screen"], image=[screen(0)])
    assert float((before - after).detach().abs().max()) > 1e-4


def test_too_little_memory_is_said_before_loading(spec: Callable[..., ServerSpec], tmp_path: Path) -> None:
    folder = shutil.copytree(spec("kontext").weights, tmp_path / "huge")
    header = json.dumps({"w": {"dtype": "F32", "shape": [10**14], "data_offsets": [0, 0]}}).encode()
    (folder / "vae" / "more.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(InfrastructureFailure) as caught:
        pipelines.check_device(dataclasses.replace(spec("kontext"), weights=str(folder)))
    assert caught.value.code == "device_memory"


def test_no_cuda_is_said(spec: Callable[..., ServerSpec]) -> None:
    if pipelines.torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(InfrastructureFailure) as caught:
        pipelines.check_device(spec("kontext", device="cuda"))
    assert caught.value.code == "no_cuda"
    assert "device: cpu" in caught.value.message
