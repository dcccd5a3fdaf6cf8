"""Typed blocks of the configuration that say how rollouts are scored. Importable without any model library."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class JudgeRow(Strict):
    """A judge: a vision-language model behind an OpenAI-compatible chat endpoint."""

    model: str = Field("gpt-5.5", min_length=1, description="Model name sent to the endpoint.")
    base_url: str = Field("https://api.openai.com/v1", description="Endpoint; not part of any identity.")
    api_key_env: str | None = Field(
        "OPENAI_API_KEY", description="Environment variable that holds the key; null for an endpoint without keys."
    )
    temperature: float | None = Field(
        0.0, ge=0, le=2, strict=False, description="Sampling temperature; null sends none."
    )
    max_tokens: int = Field(4096, ge=1, description="Largest length of an answer in tokens.")
    timeout_s: float = Field(600, gt=0, strict=False, description="Time-out of one request in seconds.")
    max_attempts: int = Field(6, ge=1, le=100, description="Requests per answer, for passing errors (429, 5xx …).")
    answers: int = Field(3, ge=1, le=20, description="How often a call whose answer breaks a rule is asked in all.")
    answers_as: list[str] = Field([], description="Other names under which this model answers.")
    in_flight: int = Field(8, ge=1, le=1000, description="Requests at a time, over all tasks.")
    extra_body: dict[str, Any] = Field({}, description="Further fields of the request body.")


class Backbone(Strict):
    """Weights of a vision backbone for S_sig or S_dino."""

    source: str = Field(min_length=1, description="A folder, or a repository on a hub.")
    revision: str | None = Field(None, description="Commit of that repository.")
    device: str | None = Field(None, description="cpu, cuda, cuda:1; null takes cuda where there is one.")


class Metrics(Strict):
    """What is measured without a judge. Pixel, edge and change metrics always are."""

    ocr: bool = Field(False, description="Read the text off every screen (extra `ocr`, about 2 CPU s a screen).")
    siglip: Backbone | None = Field(None, description="GUI-CC: google/siglip-so400m-patch14-384 (extra `features`).")
    dinov2: Backbone | None = Field(None, description="GUI-CC: facebook/dinov2-giant (extra `features`).")
