"""Typed rows of the image world models: local diffusers pipelines, ViMo, hosted image APIs.

A row says what a world is and where its weights or endpoint are; importing it imports no model library. Which fields
change a result is said by the worlds' `identity`, not here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..serving.spec import ONE_IMAGE, Dtype, Offload, Pipeline, ServerSpec
from .rows import WorldRow

Positive = Annotated[float, Field(gt=0, strict=False)]


class ImageRow(WorldRow):
    """What every image world has."""

    prompt: str = Field(description="Prompt file, a name under config/prompts/worlds/ (without .md) or a path.")
    cue: bool = Field(True, description="Mark the action's place on the screenshot: a red circle or arrow.")
    history_as: Literal["images", "text", "none"] = Field(
        "images", description="How earlier steps are shown: screens and texts, texts only, or not at all."
    )
    max_pixels: int = Field(
        1024 * 1024, ge=64 * 64, description="Largest area that is generated; the result is scaled to the frame."
    )
    min_pixels: int = Field(0, ge=0, description="Smallest area that is generated, for models that refuse small ones.")
    timeout_s: Positive = Field(1800, description="Time-out of one request in seconds.")
    max_attempts: int = Field(6, ge=1, le=100, description="Requests per step where an error may pass by itself.")

    @model_validator(mode="after")
    def _history(self) -> ImageRow:
        if self.uses_history and self.history_as == "none":
            raise ValueError("history_as: none needs uses_history: false")
        if self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels at most max_pixels ({self.max_pixels})")
        return self


class LocalImageRow(ImageRow):
    """A diffusers pipeline behind our own server, or behind any server at `endpoint` that speaks the images API."""

    pipeline: Pipeline = Field(description="Which pipeline the weights belong to.")
    weights: str = Field(min_length=1, description="Hub id (in this machine's cache) or folder in diffusers layout.")
    revision: str | None = Field(
        None, description="Commit of the hub id; for a folder, a label that stands for its content in the identity."
    )
    dtype: Dtype = Field("bfloat16", description="Type of weights and activations.")
    device: Literal["cuda", "cpu"] = Field("cuda", description="Where it runs; cpu is for tests and small models.")
    devices: list[int] | None = Field(
        None, min_length=1, description="Positions among the visible GPUs, one server each; null takes all of them."
    )
    split: bool = Field(False, description="One server over all devices instead of one per device.")
    offload: Offload = Field(
        "none", description="none, model or sequential: keeps parts in main memory, to save the GPU's."
    )
    steps: int = Field(ge=1, le=1000, description="Denoising steps.")
    guidance: float = Field(ge=0, strict=False, description="The pipeline's guidance_scale.")
    true_cfg: float = Field(1.0, ge=0, strict=False, description="Qwen's classifier-free guidance scale; 1 is off.")
    negative_prompt: str = Field("", description="What to keep away from (qwen_image_edit with true_cfg > 1, pix2pix).")
    image_guidance: float = Field(1.5, ge=0, strict=False, description="Pix2pix: how closely the input image is kept.")
    reference_pixels: int | None = Field(
        None, ge=32 * 32, description="Qwen: area its input images are scaled to; null is its own 1024 × 1024."
    )
    seed: int | None = Field(
        None, ge=0, lt=2**31, description="One seed for every step (GUI-CC: 42); null seeds from task and step."
    )
    batch_size: int = Field(4, ge=1, le=256, description="Most steps of different tasks in one call.")
    max_queue: int = Field(256, ge=1, description="Most waiting requests at one server.")
    idle_s: Positive = Field(600, description="Seconds without a request after which the server goes.")
    start_timeout_s: Positive = Field(1800, description="Seconds a server may take to load and warm up.")
    python: str | None = Field(None, description="Interpreter with torch and diffusers; null is the workflow's own.")
    endpoint: str | None = Field(
        None, description="Images API that serves these weights already; null starts a server."
    )
    api_key_env: str | None = Field(None, description="Environment variable with the endpoint's key.")

    @model_validator(mode="after")
    def _fits(self) -> LocalImageRow:
        if self.pipeline in ONE_IMAGE and self.uses_history and self.history_as == "images":
            raise ValueError(f"history_as: text ({self.pipeline} takes one image)")
        if self.split and self.device == "cpu":
            raise ValueError("split: false on cpu")
        return self

    def server_spec(self) -> ServerSpec:
        """What the server of this row serves."""
        folder = Path(self.weights).expanduser()
        return ServerSpec(
            pipeline=self.pipeline,
            weights=str(folder.resolve()) if folder.is_dir() else self.weights,  # the server runs elsewhere
            revision=self.revision,
            dtype=self.dtype,
            offload=self.offload,
            device=self.device,
            split=self.split,
            reference_pixels=self.reference_pixels,
            max_pixels=self.max_pixels,
            batch_size=self.batch_size,
            max_queue=self.max_queue,
            idle_s=self.idle_s,
            timeout_s=self.timeout_s,
            python=self.python,
        )


class Flux2Row(LocalImageRow):
    """FLUX.2 (dev), FLUX.2 Klein or FLUX.1 Kontext."""

    family: Literal["flux2"]
    pipeline: Literal["flux2", "flux2_klein", "kontext"] = "flux2"
    prompt: str = "flux2"
    steps: int = Field(28, ge=1, le=1000, description="Denoising steps; Klein's distilled sizes take 4.")
    guidance: float = Field(4.0, ge=0, strict=False, description="guidance_scale; Klein's distilled sizes take 1.")


class QwenImageEditRow(LocalImageRow):
    """Qwen-Image-Edit-2511: one sentence, no cue, no coordinates; place reaches it through the action's words."""

    family: Literal["qwen_image_edit"]
    pipeline: Literal["qwen_image_edit"] = "qwen_image_edit"
    prompt: str = "qwen_image_edit"
    cue: bool = Field(False, description="GUI-CC shows this model no cue.")
    steps: int = Field(40, ge=1, le=1000, description="Denoising steps.")
    guidance: float = Field(1.0, ge=0, strict=False, description="Not used by this pipeline; see true_cfg.")
    true_cfg: float = Field(4.0, ge=0, strict=False, description="Classifier-free guidance scale; 1 is off.")


class MobileWorldDiffusionRow(LocalImageRow):
    """MobileWorld's diffusion world model, or any other fine-tuned editing pipeline: `pipeline` says which kind."""

    family: Literal["mobileworld_diffusion"]
    prompt: str = "mobileworld_diffusion"
    steps: int = Field(40, ge=1, le=1000, description="Denoising steps.")
    guidance: float = Field(4.0, ge=0, strict=False, description="The pipeline's guidance_scale.")
    true_cfg: float = Field(4.0, ge=0, strict=False, description="Classifier-free guidance scale; 1 is off.")


class VimoRow(LocalImageRow):
    """ViMo (arXiv 2504.13936): text to placeholders, InstructPix2Pix predicts them, a chat model writes the texts."""

    family: Literal["vimo"]
    pipeline: Literal["pix2pix"] = "pix2pix"
    prompt: str = "vimo"
    history_as: Literal["text", "none"] = Field("text", description="The pipeline takes one image, so texts only.")
    steps: int = Field(100, ge=1, le=1000, description="Denoising steps (the paper's number).")
    guidance: float = Field(7.5, ge=0, strict=False, description="guidance_scale (the paper's number).")
    canvas: int = Field(512, ge=64, multiple_of=16, description="Side of the square that the graphic is predicted in.")
    text_prompt: str = Field("vimo_text", description="Prompt file of the text stage.")
    text_endpoint: str = Field("https://api.openai.com/v1", description="Chat completions API of the text stage.")
    text_model: str = Field("gpt-5.5", description="Model of the text stage.")
    text_api_key_env: str | None = Field("OPENAI_API_KEY", description="Variable with that endpoint's key, or null.")
    text_temperature: float | None = Field(0.0, ge=0, le=2, strict=False, description="Null sends none.")
    text_max_tokens: int = Field(8192, ge=1, description="Largest length of its reply in tokens.")
    text_timeout_s: Positive = Field(300, description="Time-out of one of its requests in seconds.")


class HostedImageRow(ImageRow):
    """An image model behind somebody else's API."""

    endpoint: str = Field(description="API address, up to and including the version.")
    model: str = Field(min_length=1, description="Model name sent to the endpoint.")
    api_key_env: str | None = Field(description="Environment variable that holds the key; null for none.")
    timeout_s: Positive = Field(600, description="Time-out of one request in seconds.")
    extra: dict[str, str | int | float | bool] = Field({}, description="Further fields of the request, e.g. quality.")
    sizes: list[str] | None = Field(
        None,
        min_length=1,
        description="The only sizes (WxH) the model makes; the frame is padded to the nearest shape.",
    )

    @model_validator(mode="after")
    def _sizes(self) -> HostedImageRow:
        for size in self.sizes or []:
            sides = size.split("x")
            if len(sides) != 2 or not all(side.isdigit() and int(side) > 0 for side in sides):
                raise ValueError(f"sizes: a list of WxH, e.g. [1024x1536], not {size!r}")
        return self


class ImagesApiRow(HostedImageRow):
    """Any endpoint that speaks `POST /v1/images/edits`."""

    family: Literal["images_api"]
    prompt: str = "hosted_image"
    send_seed: bool = Field(False, description="Send the step's seed as the form field `seed`.")


class GptImage2Row(HostedImageRow):
    """OpenAI's image models."""

    family: Literal["gpt_image2"]
    prompt: str = "hosted_image"
    endpoint: str = Field("https://api.openai.com/v1", description="API address.")
    model: str = Field("gpt-image-2", description="Model name.")
    api_key_env: str | None = Field("OPENAI_API_KEY", description="Environment variable that holds the key.")
    min_pixels: int = Field(655_360, ge=0, description="Smallest area the model makes.")
    max_pixels: int = Field(2048 * 2048, ge=64 * 64, description="Largest area asked for.")
    send_seed: bool = Field(False, description="OpenAI's API takes no seed.")


class GeminiImageRow(HostedImageRow):
    """Google's image models, by Gemini's own API or by a gateway that speaks the images API."""

    family: Literal["gemini_image"]
    prompt: str = "hosted_image"
    api: Literal["gemini", "images"] = Field("gemini", description="Gemini's generateContent, or /images/edits.")
    endpoint: str = Field("https://generativelanguage.googleapis.com/v1beta", description="API address.")
    model: str = Field("gemini-3-pro-image-preview", description="Model name.")
    api_key_env: str | None = Field("GEMINI_API_KEY", description="Environment variable that holds the key.")
    sizes: list[str] | None = Field(
        ["768x1376", "848x1264", "896x1200", "1024x1024", "1200x896", "1376x768"],
        min_length=1,
        description="Sizes whose shapes the model makes; the frame is padded to the nearest, then the reply cropped.",
    )
    image_size: Literal["1K", "2K", "4K"] | None = Field(None, description="Resolution class; null is the model's own.")
    send_seed: bool = Field(False, description="Send the step's seed.")


IMAGE_FAMILIES: dict[str, type[WorldRow]] = {
    "flux2": Flux2Row,
    "qwen_image_edit": QwenImageEditRow,
    "mobileworld_diffusion": MobileWorldDiffusionRow,
    "vimo": VimoRow,
    "gpt_image2": GptImage2Row,
    "gemini_image": GeminiImageRow,
    "images_api": ImagesApiRow,
}
IMAGE_MAKERS: dict[str, str] = {
    **dict.fromkeys(("flux2", "qwen_image_edit", "mobileworld_diffusion"), "images:LocalImageWorld"),
    "vimo": "vimo:VimoWorld",
    **dict.fromkeys(("gpt_image2", "gemini_image", "images_api"), "images:HostedImageWorld"),
}
