"""The diffusers families: loading, one call for several rows, and mends of what diffusers 0.42 does not do.

Runs inside the server only (imports torch). Batching, measured: Flux 2, Klein, Kontext and Pix2Pix rows of one call
equal single calls to 1e-5 of the value range; Qwen-Image-Edit-Plus refuses several prompts and loops. Rows are equal
to singles within one grey level, not byte for byte. Left out: text-to-image, masks, video, LoRA weights.
"""

from __future__ import annotations

import importlib.metadata
import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from ..failures import InfrastructureFailure, ModelFailure
from .spec import ServerSpec, folder_of, memory_needed, missing_weights

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Edit:
    """One row: make `width` × `height` pixels from `images` by `prompt`.

    `guidance` is the pipeline's guidance_scale; `true_cfg` is Qwen's own, with `negative_prompt`; `image_guidance` is
    Pix2Pix's. The row's noise comes from a CPU generator seeded with `seed`, so it depends on nothing else.
    """

    prompt: str
    images: tuple[Image.Image, ...]
    width: int
    height: int
    seed: int
    steps: int
    guidance: float
    true_cfg: float = 1.0
    negative_prompt: str = ""
    image_guidance: float = 1.5

    @property
    def group(self) -> Hashable:
        """What rows of one call must share."""
        sizes = tuple(image.size for image in self.images)
        return (
            self.width,
            self.height,
            sizes,
            self.steps,
            self.guidance,
            self.true_cfg,
            self.negative_prompt,
            self.image_guidance,
        )


class EditPipeline:
    """A loaded pipeline, bound to the thread that loaded it.

    Two threads in one diffusers pipeline give an IndexError or, silently, a wrong image, because the scheduler holds
    the state of the call in progress.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self.pipe = _load(spec)
        self.name = _CLASSES[spec.pipeline]
        self.joins_rows = spec.pipeline != "qwen_image_edit"
        self._owner = threading.get_ident()

    def identity(self) -> dict[str, str]:
        """What is loaded: class and library versions, for /health and the records."""
        versions = {name: importlib.metadata.version(name) for name in ("torch", "diffusers", "transformers")}
        return {"pipeline": self.name, "dtype": self.spec.dtype, **versions}

    def generate(self, rows: Sequence[Edit]) -> list[Image.Image]:
        """Images of `rows`, which share a group, in order. Raises torch.OutOfMemoryError, ModelFailure (not finite)."""
        if threading.get_ident() != self._owner:
            raise RuntimeError("a pipeline was called from a thread that did not load it")
        with torch.inference_mode():
            if self.joins_rows:
                return _pictures(_CALLS[self.spec.pipeline](self.pipe, rows))
            return [_pictures(_CALLS[self.spec.pipeline](self.pipe, [row]))[0] for row in rows]

    def warm_up(self) -> None:
        """One real generation: one step, on CUDA at the largest size the server allows, else small."""
        side = int(self.spec.max_pixels**0.5) // 16 * 16
        side = max(64, side if self.spec.device == "cuda" else min(side, 128))
        grey = Image.new("RGB", (side, side), (127, 127, 127))
        self.generate([Edit("warm-up", (grey,), side, side, 0, steps=1, guidance=1.0)])


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller batch may help."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError))


def is_device_fault(error: BaseException) -> bool:
    """Whether the CUDA context is lost, so that the process must go."""
    return isinstance(error, torch.AcceleratorError) and not isinstance(error, torch.OutOfMemoryError)


def free_memory() -> None:
    """Gives cached blocks back after an out-of-memory. Call it outside the `except` block, which holds the tensors."""
    import gc

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def check_device(spec: ServerSpec) -> None:
    """Raises InfrastructureFailure where the device is absent or has too little free memory for the weights."""
    folder = folder_of(spec.weights, spec.revision)
    missing = missing_weights(spec.weights, spec.revision)
    if missing or folder is None:
        raise InfrastructureFailure("weights_missing", "; ".join(missing))
    needed = memory_needed(folder, spec.dtype, spec.offload)
    if spec.device == "cpu":
        import psutil

        free = psutil.virtual_memory().available
    elif not torch.cuda.is_available():
        raise InfrastructureFailure(
            "no_cuda", "torch sees no CUDA device; set `device: cpu` or use a CUDA build of torch"
        )
    else:
        count = torch.cuda.device_count() if spec.split else 1
        free = sum(torch.cuda.mem_get_info(number)[0] for number in range(count))
    if needed > free:
        raise InfrastructureFailure(
            "device_memory",
            f"the weights need {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; "
            "set `offload: model` or `offload: sequential`, or use a larger device",
            needed=needed,
            free=free,
        )


_CLASSES = {
    "flux2": "Flux2Pipeline",
    "flux2_klein": "Flux2KleinPipeline",
    "qwen_image_edit": "QwenImageEditPlusPipeline",
    "kontext": "FluxKontextPipeline",
    "pix2pix": "StableDiffusionInstructPix2PixPipeline",
}


def _load(spec: ServerSpec) -> Any:
    declare_torchvision_operators()
    import diffusers

    folder = folder_of(spec.weights, spec.revision)
    if folder is None:
        raise InfrastructureFailure("weights_missing", "; ".join(missing_weights(spec.weights, spec.revision)))
    options: dict[str, Any] = {"dtype": getattr(torch, spec.dtype), "local_files_only": True}
    if spec.split:
        options["device_map"] = "balanced"
    pipe = getattr(diffusers, _CLASSES[spec.pipeline]).from_pretrained(str(folder), **options)
    pipe.set_progress_bar_config(disable=True)
    if spec.pipeline in ("flux2", "flux2_klein"):
        pipe = row_wise(pipe)
    if spec.pipeline == "qwen_image_edit":
        pass_token_types(pipe)
        if spec.reference_pixels:
            _set_reference_pixels(spec.reference_pixels)
    if getattr(pipe, "safety_checker", None) is not None:
        # It blackens what it mistakes for nudity, and a black screen would be scored as the model's.
        pipe.safety_checker = None
    if spec.split:
        return pipe
    if spec.device == "cpu" or spec.offload == "none":
        pipe.to(spec.device)
    elif spec.offload == "model":
        pipe.enable_model_cpu_offload(device=spec.device)
    else:
        pipe.enable_sequential_cpu_offload(device=spec.device)
    return pipe


class _RowWise:
    """Mixed into Flux2Pipeline and Flux2KleinPipeline: each row of a call has its *own* reference images.

    The stock class gives every row all images of the call. Here `image` is row 0's images, then row 1's …, the same
    number and sizes for each row.
    """

    def prepare_image_latents(
        self, images: Sequence[torch.Tensor], batch_size: int, generator: Any, device: Any, dtype: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents (B, tokens, channels) and their position ids (B, tokens, 4); the VAE's mode is taken, no noise."""
        if len(images) % batch_size:
            raise ValueError(f"{len(images)} images for {batch_size} rows")
        count = len(images) // batch_size
        stock: Callable[..., tuple[torch.Tensor, torch.Tensor]] = super().prepare_image_latents  # type: ignore[misc]
        rows = [stock(images[row * count : (row + 1) * count], 1, None, device, dtype) for row in range(batch_size)]
        return torch.cat([latents for latents, _ in rows]), torch.cat([ids for _, ids in rows])


def row_wise(pipe: Any) -> Any:
    """`pipe` turned into its row-wise subclass, in place: weights, hooks and device map stay as they are."""
    pipe.__class__ = type("RowWise" + type(pipe).__name__, (_RowWise, type(pipe)), {})
    return pipe


def pass_token_types(pipe: Any) -> Any:
    """Hands mm_token_type_ids to the Qwen2.5-VL encoder; returns the hook's handle.

    diffusers 0.42.1 does not (huggingface/diffusers issue 14194), and transformers >= 5 then silently counts
    positions as if the images were text.
    """

    def add(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        ids = kwargs.get("input_ids")
        if ids is not None and kwargs.get("image_grid_thw") is not None and kwargs.get("mm_token_type_ids") is None:
            kwargs["mm_token_type_ids"] = (ids == module.config.image_token_id).int()
        return args, kwargs

    return pipe.text_encoder.register_forward_pre_hook(add, with_kwargs=True)


def _set_reference_pixels(area: int) -> None:
    """Qwen's pipeline takes this area from module constants and from no argument."""
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as module

    module.VAE_IMAGE_SIZE = module.CONDITION_IMAGE_SIZE = area


_vision_operators: list[Any] = []


def declare_torchvision_operators() -> None:
    """Lets the package index's torchvision (a CUDA build) import beside a CPU torch: call it before transformers.

    Its Python half registers fakes for two operators of its compiled half, which cannot load there. Declaring them is
    enough for every image processor; nms and decoding do not work. Does nothing beside a CUDA torch or a +cpu
    torchvision.
    """
    if _vision_operators or torch.version.cuda is not None:
        return
    try:
        if "+cpu" in importlib.metadata.version("torchvision"):
            return
    except importlib.metadata.PackageNotFoundError:
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _vision_operators.append(library)  # the declaration lives as long as this object


def _generators(rows: Sequence[Edit]) -> list[torch.Generator]:
    return [torch.Generator("cpu").manual_seed(row.seed) for row in rows]


def _common(rows: Sequence[Edit]) -> dict[str, Any]:
    return {
        "prompt": [row.prompt for row in rows],
        "num_inference_steps": rows[0].steps,
        "guidance_scale": rows[0].guidance,
        "generator": _generators(rows),
        "output_type": "np",
    }


def _flux2(pipe: Any, rows: Sequence[Edit]) -> Any:
    images = [image for row in rows for image in row.images]
    return pipe(image=images, height=rows[0].height, width=rows[0].width, **_common(rows)).images


def _kontext(pipe: Any, rows: Sequence[Edit]) -> Any:
    height, width = rows[0].height, rows[0].width
    images = [row.images[0] for row in rows]
    return pipe(
        image=images, height=height, width=width, max_area=height * width, _auto_resize=False, **_common(rows)
    ).images


def _pix2pix(pipe: Any, rows: Sequence[Edit]) -> Any:
    size = (rows[0].width, rows[0].height)  # the pipeline has no size argument; it makes what it is given
    images = [row.images[0].resize(size, Image.Resampling.LANCZOS) for row in rows]
    negative = [row.negative_prompt for row in rows]
    options = {"negative_prompt": negative, "image_guidance_scale": rows[0].image_guidance}
    return pipe(image=images, **options, **_common(rows)).images


def _qwen(pipe: Any, rows: Sequence[Edit]) -> Any:
    (row,) = rows
    options: dict[str, Any] = {"true_cfg_scale": row.true_cfg}
    if row.true_cfg > 1:
        options["negative_prompt"] = row.negative_prompt or " "  # an empty one would turn the guidance off
    common = _common(rows) | {"prompt": row.prompt, "generator": _generators(rows)[0]}
    del common["guidance_scale"]  # the released model is not guidance-distilled and ignores it
    return pipe(image=list(row.images), height=row.height, width=row.width, **options, **common).images


_CALLS: dict[str, Callable[[Any, Sequence[Edit]], Any]] = {
    "flux2": _flux2,
    "flux2_klein": _flux2,
    "kontext": _kontext,
    "pix2pix": _pix2pix,
    "qwen_image_edit": _qwen,
}


def _pictures(values: np.ndarray[Any, Any]) -> list[Image.Image]:
    """Float images (B, H, W, 3) in 0..1 as 8-bit images. Raises ModelFailure where a value is not finite."""
    if not np.isfinite(values).all():
        raise ModelFailure("not_finite", "the pipeline produced values that are no numbers")
    return [Image.fromarray((value * 255).round().astype(np.uint8)) for value in values]
