"""World models that answer with a picture: local diffusers pipelines through our server, hosted models through an API.

A step is one request: the current screen with the action's cue, a sentence about the action, and what the setting
shows of the history; seeded from task and step. Left out: ViMo's stages (`vimo`), the resizing of the answer to the
frame (the loop's work), and everything about GPUs (the server's).
"""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..failures import InfrastructureFailure
from ..identity import bytes_digest
from ..records import png_bytes
from ..serving import client, launcher
from ..serving.client import Edited, Endpoint, Patience
from ..serving.spec import ServerSpec, folder_of, generation_size, memory_needed, missing_weights, weights_identity
from .base import Prediction, StepRequest
from .cues import draw_cue, has_cue
from .image_prompts import ACTIONS, Prompt, step_prompt
from .image_rows import GeminiImageRow, HostedImageRow, ImageRow, LocalImageRow

if TYPE_CHECKING:
    from PIL.Image import Image

LOG_FOLDER = Path("results/logs/servers")
LOST_SERVER_ATTEMPTS = 3
"""A request is sent to a new server this often after its server died; the same request may be what kills it."""
SERVER_PACKAGES = ("torch", "diffusers", "transformers", "accelerate", "uvicorn", "starlette", "multipart", "psutil")


class _ImageWorld:
    """What local and hosted worlds share: conditioning, prompt, evidence."""

    def __init__(self, row: ImageRow) -> None:
        self._image_row = row

    @cached_property
    def _prompt(self) -> Prompt:
        return Prompt.load(self._image_row.prompt)

    def _conditioning(self) -> dict[str, Any]:
        """The part of the identity that says what the model is shown."""
        row = self._image_row
        return {
            "version": 1,
            "prompts": {"prompt": self._prompt.digest, "actions": Prompt.load(ACTIONS).digest},
            "cue": row.cue,
            "history_as": row.history_as,
            "max_pixels": row.max_pixels,
            "min_pixels": row.min_pixels,
        }

    def _text(self, request: StepRequest) -> str:
        cue = self._image_row.cue and has_cue(request.action)
        return step_prompt(self._prompt, request, cue=cue, history=self._image_row.history_as)

    def _screens(self, request: StepRequest) -> list[Image]:
        """The current screen, with its cue, then the earlier ones as they were, oldest first."""
        current = opened(request.frame)
        screens = [draw_cue(current, request.action) if self._image_row.cue else current]
        if self._image_row.history_as == "images":
            screens += [opened(item.frame) for item in request.history]
        return screens


class LocalImageWorld(_ImageWorld):
    """A diffusers pipeline behind our own server (or behind `endpoint`)."""

    def __init__(self, row: LocalImageRow) -> None:
        super().__init__(row)
        self._row = row

    def identity(self) -> dict[str, Any]:
        row = self._row
        return {
            "world": row.family,
            "pipeline": row.pipeline,
            "weights": weights_identity(row.weights, row.revision),
            "dtype": row.dtype,
            "seed": row.seed,
            "reference_pixels": row.reference_pixels,
            "sampling": self._sampling(),
            **self._conditioning(),
        }

    def predict(self, request: StepRequest) -> Prediction:
        row = self._row
        width, height = generation_size(request.task.width, request.task.height, row.max_pixels, row.min_pixels)
        screens = self._screens(request)
        if row.pipeline != "qwen_image_edit":  # that one scales its input itself, from the original
            screens = [scaled(screen, (width, height)) for screen in screens]
        prompt = self._text(request)
        answer = self._edit(request, prompt, screens, (width, height))
        return Prediction(png=answer.data, evidence=evidence(prompt, screens, (width, height), answer.facts))

    def preflight(self) -> list[str]:
        row = self._row
        if row.endpoint is not None:
            return missing_key(row.api_key_env, "api_key_env")
        return server_faults(row.server_spec(), row.devices)

    def _sampling(self) -> dict[str, Any]:
        row = self._row
        return {
            "steps": row.steps,
            "guidance": row.guidance,
            "true_cfg": row.true_cfg,
            "negative_prompt": row.negative_prompt,
            "image_guidance": row.image_guidance,
        }

    def _edit(self, request: StepRequest, prompt: str, screens: Sequence[Image], size: tuple[int, int]) -> Edited:
        """One picture from the pipeline, from a new server if the old one died meanwhile."""
        row = self._row
        seed = request.seed if row.seed is None else row.seed
        extra = {"task": request.task.task_id, **self._sampling()}
        fields = {
            "model": row.weights,
            "size": f"{size[0]}x{size[1]}",
            "seed": str(seed),
            "extra": json.dumps(extra),
            "response_format": "b64_json",
        }
        images = [png_bytes(screen) for screen in screens]
        patience = Patience(timeout_s=row.timeout_s, attempts=row.max_attempts)

        def ask(endpoint: Endpoint) -> Edited:
            return client.edit(endpoint, prompt=prompt, images=images, fields=fields, patience=patience)

        if row.endpoint is not None:
            return ask(Endpoint(row.endpoint, _key(row.api_key_env)))
        spec = row.server_spec()
        slots = launcher.slots(row.device, row.devices, row.split)
        for attempt in range(1, LOST_SERVER_ATTEMPTS + 1):
            try:
                with launcher.borrowed(
                    spec, slots, log_folder=LOG_FOLDER, start_timeout_s=row.start_timeout_s
                ) as endpoint:
                    return ask(endpoint)
            except InfrastructureFailure as failure:
                if failure.code != "server_lost" or attempt == LOST_SERVER_ATTEMPTS:
                    raise
        raise AssertionError("not reached")


class HostedImageWorld(_ImageWorld):
    """An image model behind an API of somebody else."""

    def __init__(self, row: HostedImageRow) -> None:
        super().__init__(row)
        self._row = row

    def identity(self) -> dict[str, Any]:
        row = self._row
        options = row.model_dump(include={"api", "image_size", "send_seed"})
        return {
            "world": row.family,
            "model": row.model,
            "sizes": row.sizes,
            "extra": dict(row.extra),
            "options": options,
            **self._conditioning(),
        }

    def preflight(self) -> list[str]:
        return missing_key(self._row.api_key_env, "api_key_env")

    def predict(self, request: StepRequest) -> Prediction:
        row, task = self._row, request.task
        canvas = Canvas.of(task.width, task.height, row.sizes, row.max_pixels, row.min_pixels)
        screens = [canvas.put(screen) for screen in self._screens(request)]
        prompt = self._text(request)
        images = [png_bytes(screen) for screen in screens]
        endpoint = Endpoint(row.endpoint, _key(row.api_key_env))
        patience = Patience(timeout_s=row.timeout_s, attempts=row.max_attempts)
        if isinstance(row, GeminiImageRow) and row.api == "gemini":
            config: dict[str, Any] = {"imageConfig": {"aspectRatio": canvas.ratio}, **row.extra}
            if row.image_size is not None:
                config["imageConfig"]["imageSize"] = row.image_size
            if row.send_seed:
                config["seed"] = request.seed
            answer = client.edit_gemini(
                endpoint, model=row.model, prompt=prompt, images=images, config=config, patience=patience
            )
        else:
            fields = {"model": row.model, "size": f"{canvas.width}x{canvas.height}"}
            if getattr(row, "send_seed", False):
                fields["seed"] = str(request.seed)
            fields |= {name: json.dumps(v) if isinstance(v, bool) else str(v) for name, v in row.extra.items()}
            answer = client.edit(endpoint, prompt=prompt, images=images, fields=fields, patience=patience)
        facts = evidence(prompt, screens, (canvas.width, canvas.height), answer.facts)
        return Prediction(png=canvas.take(answer.data), evidence=facts)


@dataclass(frozen=True, slots=True)
class Canvas:
    """The size that a hosted model makes, and where in it the frame lies (`box`: left, top, right, bottom)."""

    width: int
    height: int
    box: tuple[int, int, int, int]

    @classmethod
    def of(cls, width: int, height: int, sizes: Sequence[str] | None, max_pixels: int, min_pixels: int) -> Canvas:
        """The canvas for a `width` × `height` frame: its own shape, or of `sizes` the one nearest in shape."""
        if sizes is None:
            w, h = generation_size(width, height, max_pixels, min_pixels)
            return cls(w, h, (0, 0, w, h))
        pairs = [tuple(int(side) for side in size.split("x")) for size in sizes]
        w, h = min(pairs, key=lambda pair: abs(math.log(pair[0] / pair[1] * height / width)))
        scale = min(w / width, h / height)
        inner = (round(width * scale), round(height * scale))
        left, top = (w - inner[0]) // 2, (h - inner[1]) // 2
        return cls(w, h, (left, top, left + inner[0], top + inner[1]))

    @property
    def ratio(self) -> str:
        """The shape as the nearest ratio that Gemini names, e.g. 9:16."""
        names = ("1:1", "2:3", "3:2", "3:4", "4:3", "4:5", "5:4", "9:16", "16:9", "21:9")

        def distance(name: str) -> float:
            across, down = name.split(":")
            return abs(math.log(self.width / self.height * int(down) / int(across)))

        return min(names, key=distance)

    def put(self, screen: Image) -> Image:
        """`screen` scaled into its box, on grey."""
        from PIL import Image as images

        left, top, right, bottom = self.box
        inner = scaled(screen, (right - left, bottom - top))
        if inner.size == (self.width, self.height):
            return inner
        canvas = images.new("RGB", (self.width, self.height), (128, 128, 128))
        canvas.paste(inner, (left, top))
        return canvas

    def take(self, data: bytes) -> bytes:
        """The frame's part of an answer of any size, as PNG; an answer without padding stays byte for byte."""
        from PIL import Image as images

        if self.box == (0, 0, self.width, self.height):
            return data
        with images.open(io.BytesIO(data)) as answer:
            x, y = answer.width / self.width, answer.height / self.height
            left, top, right, bottom = self.box
            return png_bytes(
                answer.convert("RGB").crop((round(left * x), round(top * y), round(right * x), round(bottom * y)))
            )


def server_faults(spec: ServerSpec, devices: Sequence[int] | None) -> list[str]:
    """What would keep our server from serving `spec` here, each with the setting that mends it; takes seconds."""
    faults = missing_weights(spec.weights, spec.revision)
    faults += _missing_packages(spec.python)
    folder = folder_of(spec.weights, spec.revision)
    needed = 0 if faults or folder is None else memory_needed(folder, spec.dtype, spec.offload)
    try:
        slots = launcher.slots(spec.device, devices, spec.split)
    except InfrastructureFailure as failure:
        return [*faults, failure.message]
    if spec.device == "cpu":
        import psutil

        memory = psutil.virtual_memory().total // len(slots)
    else:
        gpus = launcher.visible_gpus()
        chosen = gpus if devices is None else [gpus[number] for number in devices]
        amounts = [gpu.memory for gpu in chosen]
        memory = (sum(amounts) if spec.split else min(amounts)) if all(amounts) else needed
    if needed > memory:
        offload = "" if spec.device == "cpu" else "`offload: model` or `offload: sequential`, "
        faults.append(
            f"the weights need {needed / 1e9:.1f} GB and the device has {memory / 1e9:.1f} GB; set {offload}"
            "`dtype: bfloat16`, smaller weights, or a larger device"
        )
    return faults


def _missing_packages(python: str | None) -> list[str]:
    """What the server's interpreter lacks, found without importing any of it."""
    names = ", ".join(SERVER_PACKAGES)
    if python is None:
        from importlib.util import find_spec

        absent = [name for name in SERVER_PACKAGES if find_spec(name) is None]
    else:
        code = "import sys; from importlib.util import find_spec as f; print(*[n for n in sys.argv[1:] if not f(n)])"
        try:
            answer = subprocess.run(
                [python, "-c", code, *SERVER_PACKAGES], capture_output=True, text=True, timeout=60, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            return [f"python: {python} cannot be run ({error}); set it to an interpreter that has {names}"]
        absent = answer.stdout.split()
    if not absent:
        return []
    hint = "install the extra `images`, or set `python:` to an interpreter that has them"
    return [f"the packages {', '.join(absent)} are missing; {hint}"]


def missing_key(variable: str | None, field: str) -> list[str]:
    """One sentence, if the key that `field` names is not in the environment."""
    if variable is None or os.environ.get(variable, "").strip():
        return []
    return [f"the environment variable {variable} is not set; export the endpoint's key in it, or set `{field}:`"]


def _key(variable: str | None) -> str:
    if faults := missing_key(variable, "api_key_env"):
        raise InfrastructureFailure("no_api_key", faults[0])
    return os.environ[variable].strip() if variable else ""


def opened(path: Path) -> Image:
    """A picture as RGB."""
    from PIL import Image as images

    with images.open(path) as image:
        return image.convert("RGB")


def scaled(image: Image, size: tuple[int, int]) -> Image:
    """`image` at `size` (width, height)."""
    from PIL import Image as images

    return image if image.size == size else image.resize(size, images.Resampling.LANCZOS)


def evidence(prompt: str, screens: Sequence[Image], size: tuple[int, int], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a step's record says about its request: sentence, pictures' digests, size, and facts of the reply."""
    shown = [{"size": list(screen.size), "sha256": bytes_digest(screen.tobytes())} for screen in screens]
    return {"prompt": prompt, "size": list(size), "images": shown, **facts}
