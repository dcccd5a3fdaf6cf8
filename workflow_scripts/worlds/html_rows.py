"""Typed rows of the world models that write HTML: a chat endpoint, a prompt style, and how the page is laid out.

Importing it imports no model library. Which fields change a result is said by `html.HtmlWorld.identity`, not here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from .rows import WorldRow

Coordinates = Literal["none", "relative", "permille"]
Positive = Annotated[float, Field(gt=0, strict=False)]


class Style(NamedTuple):
    """What a family of models is shown, where its row does not say otherwise."""

    cue: bool
    coordinates: Coordinates
    canvas: str


STYLES: dict[str, Style] = {
    "code2world": Style(cue=True, coordinates="none", canvas="1080x2400"),
    "gworld": Style(cue=False, coordinates="permille", canvas="360"),
    "mobileworld": Style(cue=False, coordinates="relative", canvas="frame"),
    "generic": Style(cue=True, coordinates="none", canvas="frame"),
}
"""Each has its prompt in config/prompts/worlds/html_{style}.md."""


class HtmlRow(WorldRow):
    """A model behind an OpenAI-compatible chat endpoint that writes the next screen as one HTML page."""

    family: Literal["html"]
    style: Literal["code2world", "gworld", "mobileworld", "generic"] = Field(
        "generic", description="Whose conditioning and prompt: that of a trained family, or generic for any chat model."
    )
    model: str = Field(min_length=1, description="Model name sent to the endpoint.")
    endpoint: str = Field(pattern="^https?://", description="Chat completions API, up to and including /v1.")
    api_key_env: str | None = Field(
        None, description="Environment variable that holds the key; null for an endpoint without keys."
    )
    revision: str | None = Field(
        None, description="Label of the weights behind the name (commit, checkpoint); part of the results' identity."
    )
    max_tokens: int = Field(16384, ge=1, description="Largest length of a reply in tokens, reasoning included.")
    temperature: float | None = Field(1.0, ge=0, le=2, strict=False, description="Null sends none.")
    seed: int | Literal["step"] | None = Field(
        "step", description="step: another for each task and step; a number: that one at every step; null sends none."
    )
    extra_body: dict[str, Any] = Field({}, description="Further fields of the request body, e.g. reasoning_effort.")
    timeout_s: Positive = Field(600, description="Time-out of one request in seconds.")
    max_attempts: int = Field(6, ge=1, le=100, description="Requests per step where an error may pass by itself.")
    cue: bool | None = Field(
        None, description="Mark the action's place on the current screenshot (red circle or arrow); null: as the style."
    )
    coordinates: Coordinates | None = Field(
        None, description="How the text names the action's place: none, relative (0-1), permille; null: as the style."
    )
    canvas: str | None = Field(
        None,
        pattern=r"^(frame|[1-9]\d*(x[1-9]\d*)?)$",
        description="Size in CSS pixels that the page is asked for: frame (the task's own size), WIDTHxHEIGHT, or "
        '"WIDTH" with the frame\'s shape; null: as the style.',
    )
    javascript: bool = Field(False, description="Run the page's scripts before its picture is taken.")
    render_timeout_s: Positive = Field(20, description="Seconds a page may take to render, alone in a browser.")

    @property
    def shown(self) -> Style:
        """The style with this row's own choices."""
        chosen = {name: getattr(self, name) for name in Style._fields if getattr(self, name) is not None}
        return STYLES[self.style]._replace(**chosen)
