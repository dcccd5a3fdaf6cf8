"""The planner that asks a vision-language model behind an OpenAI-compatible endpoint: GUI-CC's agent-loop track.

One request shows the model the current screen in full size, the instruction and a numbered one-line summary of every
past action, and offers it the function `computer` (tool_choice ``auto``: reasoning models refuse a forced one). A reply
that is no legal action is asked for again, unchanged but for the seed, until `max_attempts` requests are used up; the
endpoint's errors count among them and wait as `chat` says. When none is left, the failure is the infrastructure's, as
the planner is not what is being compared.

Left out: past screens and past thoughts (GUI-CC's agent has neither), tool calls written into the text of a reply by
servers that lack a parser for their model, telling the model what was wrong with its last reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..actions import ACTION_TYPES, DIRECTIONS, STATUSES, Action, InvalidAction
from ..chat import ChatClient, Reply, ToolCall, image_part, plain_text, text_part
from ..failures import InfrastructureFailure, InvalidInput, from_os_error
from ..identity import bytes_digest, digest, seed_of
from .base import Planned, PlannerRequest

if TYPE_CHECKING:
    from ..config import OpenAIPlanner
    from ..tasks import Task

PROTOCOL_VERSION = 1
"""Part of the identity: raised when the make-up of a request or the reading of a reply changes."""
PROMPTS = Path(__file__).parents[2] / "config" / "prompts"
SYSTEM_PROMPT, USER_PROMPT = "planner_system.md", "planner_user.md"
TOOL_NAME = "computer"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "Carries out one action on the screen that the screenshot shows.",
        "parameters": {
            "type": "object",
            "properties": {
                "thinking": {
                    "type": "string",
                    "description": "One or two sentences: what the screen shows, what is left to do, why this action.",
                },
                "action": {"type": "string", "enum": list(ACTION_TYPES), "description": "What to do."},
                "coordinate": {
                    "type": "array",
                    "items": {"type": "number"},
                    "minItems": 2,
                    "maxItems": 2,
                    "description": "[x, y] in pixels of the screenshot, from its top-left corner. For tap, long_press, "
                    "scroll.",
                },
                "direction": {
                    "type": "string",
                    "enum": list(DIRECTIONS),
                    "description": "Motion of the finger. For scroll: up shows what lies further down.",
                },
                "text": {"type": "string", "description": "What to type. For type_text."},
                "app_name": {"type": "string", "description": "Name of the app. For open_app."},
                "answer_text": {"type": "string", "description": "The answer to the task's question. For answer."},
                "status": {"type": "string", "enum": list(STATUSES), "description": "How it ended. For terminate."},
                "target": {"type": "string", "description": "A few words naming the element acted on."},
            },
            "required": ["action"],
        },
    },
}


class InvalidPlan(ValueError):
    """A reply that is no legal action; `code` says which rule it breaks.

    Codes: empty_choices, content_filter, length, refusal, no_tool_call, unknown_tool, arguments_not_json, and those of
    `actions.InvalidAction`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class VisionPlanner:
    """Asks the model of one row of the configuration. Stateless; used from many threads."""

    def __init__(self, row: OpenAIPlanner) -> None:
        self._row = row
        self._chat = ChatClient(row.base_url, row.model, row.api_key_env, row.timeout_s, row.max_attempts)

    @cached_property
    def _prompts(self) -> tuple[str, str]:
        return _read_prompt(SYSTEM_PROMPT), _read_prompt(USER_PROMPT)

    def identity(self) -> dict[str, Any]:
        """Model, prompts, tool and sampling; not the endpoint, time-outs, attempts or the key's name."""
        system, user = self._prompts
        return {
            "kind": self._row.kind,
            "protocol": PROTOCOL_VERSION,
            "model": self._row.model,
            "system_prompt": bytes_digest(system.encode()),
            "user_prompt": bytes_digest(user.encode()),
            "tool": digest(TOOL),
            "temperature": self._row.temperature,
            "max_tokens": self._row.max_tokens,
            "extra_body": dict(self._row.extra_body),
        }

    def step_identity(self, task: Task, step: int) -> dict[str, Any]:
        return self.identity()

    def preflight(self) -> list[str]:
        name = self._chat.missing_key()
        return [f"the environment variable {name} (planner's key) is not set: export {name}=…"] if name else []

    def act(self, request: PlannerRequest) -> Planned:
        """See `Planner.act`.

        Raises InvalidInput (no key) and InfrastructureFailure: the codes of `ChatClient.complete`,
        ``planner_invalid_reply`` when the attempts are used up, ``planner_wrong_model`` (strict_model only). Its detail
        holds ``planner_attempts`` in the form of the evidence.
        """
        messages = self._messages(request)
        attempts: list[dict[str, Any]] = []
        invalid: InvalidPlan | None = None
        while len(attempts) < self._row.max_attempts:
            try:
                reply = self._chat.complete(
                    messages,
                    tools=[TOOL],
                    tool_choice="auto",
                    temperature=self._row.temperature,
                    max_tokens=self._row.max_tokens,
                    # Another seed each time: a server that honours seeds would repeat its bad reply.
                    seed=seed_of("planner", request.seed, len(attempts)),
                    extra_body=self._row.extra_body,
                    retry_seed=(request.task.task_id, request.step, len(attempts)),
                    max_attempts=self._row.max_attempts - len(attempts),
                )
            except InfrastructureFailure as failure:
                attempts += [self._failed(item) for item in failure.detail.pop("attempts")]
                failure.detail["planner_attempts"] = _numbered(attempts)
                raise
            attempts += [self._failed(item) for item in reply.attempts[:-1]]
            evidence = self._answered(reply)
            attempts.append(evidence)
            self._check_model(reply, attempts)
            try:
                arguments = _arguments(reply)
                action = _action(arguments, request.width, request.height)
            except InvalidPlan as error:
                invalid = error
                evidence["validation_error"] = f"{error.code}: {error}"
                continue
            evidence["notes"] += _notes(reply, arguments, action, request)
            return _planned(action, arguments, reply, _numbered(attempts), request)
        assert invalid is not None  # the budget is at least 1, and errors of the endpoint leave by `raise`
        raise InfrastructureFailure(
            "planner_invalid_reply",
            f"{self._row.model} gave no legal action in {len(attempts)} requests; the last: {invalid.code}: {invalid}",
            planner_attempts=_numbered(attempts),
        )

    def _messages(self, request: PlannerRequest) -> list[dict[str, Any]]:
        try:
            screen = request.frame.read_bytes()
        except OSError as error:
            raise from_os_error(error, f"cannot read {request.frame}") from error
        summaries = (" ".join(action.summary().split()) for action in request.past)
        values = {
            "width": request.width,
            "height": request.height,
            "max_x": request.width - 1,
            "max_y": request.height - 1,
            "instruction": request.task.instruction,
            "history": "\n".join(f"{number}. {line}" for number, line in enumerate(summaries, 1)) or "none yet",
            "turn": request.step + 1,
        }
        system, user = self._prompts
        return [
            {"role": "system", "content": _filled(SYSTEM_PROMPT, system, values)},
            {"role": "user", "content": [text_part(_filled(USER_PROMPT, user, values)), image_part(screen)]},
        ]

    def _check_model(self, reply: Reply, attempts: list[dict[str, Any]]) -> None:
        if self._row.strict_model and not _same_model(self._row.model, reply.model):
            raise InfrastructureFailure(
                "planner_wrong_model",
                f"asked for {self._row.model}, answered by {reply.model} (strict_model: true)",
                planner_attempts=_numbered(attempts),
            )

    def _failed(self, attempt: Mapping[str, Any]) -> dict[str, Any]:
        """Evidence of a request that brought no reply."""
        timing = {name: attempt[name] for name in ("status", "seconds", "waited_s")}
        return {
            "error": attempt["error"],
            "requested_model": self._row.model,
            "response_model": attempt["response_model"],
            "usage": attempt["usage"],
            **timing,
        }

    def _answered(self, reply: Reply) -> dict[str, Any]:
        """Evidence of a reply, before it is judged."""
        last = reply.attempts[-1]
        calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in reply.tool_calls]
        same = _same_model(self._row.model, reply.model)
        return {
            "tool_calls": calls,
            "content": reply.content,
            "reasoning": reply.reasoning,
            "refusal": reply.refusal,
            "finish_reason": reply.finish_reason,
            "requested_model": self._row.model,
            "response_model": reply.model,
            "validation_error": None,
            "notes": [] if same else [f"asked for {self._row.model}, answered by {reply.model}"],
            "usage": reply.usage,
            "status": last["status"],
            "seconds": last["seconds"],
            "waited_s": last["waited_s"],
        }


def _arguments(reply: Reply) -> dict[str, Any]:
    """The arguments of the reply's first tool call. Raises InvalidPlan."""
    if not reply.choices:
        raise InvalidPlan("empty_choices", "the reply has no choice in it")
    if reply.finish_reason == "content_filter":
        raise InvalidPlan("content_filter", "the reply was filtered")
    if reply.finish_reason == "length":
        raise InvalidPlan("length", "the reply was cut off at max_tokens")
    if not reply.tool_calls:
        if reply.refusal:
            raise InvalidPlan("refusal", f"the model refused: {reply.refusal[:200]}")
        raise InvalidPlan("no_tool_call", f"the reply calls no tool: {(reply.content or '')[:200]!r}")
    call: ToolCall = reply.tool_calls[0]
    if call.name != TOOL_NAME:
        raise InvalidPlan("unknown_tool", f"the reply calls {call.name[:100]!r}, not {TOOL_NAME}")

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    try:
        arguments = json.loads(call.arguments, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidPlan("arguments_not_json", f"the arguments are no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise InvalidPlan("bad_value", f"the arguments are a {type(arguments).__name__}, not an object")
    return {key: plain_text(value) if isinstance(value, str) else value for key, value in arguments.items()}


def _action(arguments: Mapping[str, Any], width: int, height: int) -> Action:
    try:
        return Action.from_call(arguments, width, height)
    except InvalidAction as error:
        raise InvalidPlan(error.code, str(error)) from error
    except OverflowError as error:  # a whole number beyond any float
        raise InvalidPlan("bad_value", f"coordinate: {error}") from error


def _notes(reply: Reply, arguments: Mapping[str, Any], action: Action, request: PlannerRequest) -> list[str]:
    """What was done to a reply to make it the action that it became."""
    notes = []
    if len(reply.tool_calls) > 1:
        notes.append(f"{len(reply.tool_calls)} tool calls, the first was taken")
    if action.x is not None and action.y is not None:
        given = arguments.get("coordinate")
        if given is None:
            given = arguments["x"] if isinstance(arguments["x"], list) else [arguments["x"], arguments["y"]]
        # Rounding moves a point by half a pixel at most; more means that it lay outside.
        if abs(given[0] - action.x) > 0.5 or abs(given[1] - action.y) > 0.5:
            frame = f"{request.width}×{request.height}"
            notes.append(f"the point {given} lies outside the {frame} frame, moved to [{action.x}, {action.y}]")
    return notes


def _planned(
    action: Action, arguments: Mapping[str, Any], reply: Reply, attempts: list[dict[str, Any]], request: PlannerRequest
) -> Planned:
    thinking = arguments.get("thinking")
    plan = (thinking if isinstance(thinking, str) else reply.content or "").strip()
    text = f"{plan}\n\n{action.summary()}" if plan else action.summary()
    evidence = {
        "planner_attempts": attempts,
        "plan": plan,
        "semantic_action": action.semantic(request.width, request.height),
        "formatted_response": text,
    }
    return Planned(action, plan, text, evidence)


def _numbered(attempts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"attempt": number, **attempt} for number, attempt in enumerate(attempts, 1)]


def _same_model(requested: str, answered: str | None) -> bool:
    """Whether the name in a reply is the one asked for, with or without a date; a reply may name none."""
    return answered is None or re.fullmatch(re.escape(requested) + r"(-[\d-]+)?", answered) is not None


def _read_prompt(name: str) -> str:
    path = PROMPTS / name
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fix = f"git checkout -- {path.relative_to(PROMPTS.parents[1])}"
        raise InvalidInput(str(path), "(whole file)", "a readable prompt in UTF-8", str(error), fix) from error


def _filled(name: str, template: str, values: Mapping[str, Any]) -> str:
    """`template` with its ``{placeholders}`` replaced, in one pass: braces in a value stay as they are."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            expected = "a placeholder among " + ", ".join(f"{{{key}}}" for key in values)
            raise InvalidInput(str(PROMPTS / name), match[0], expected, match[0], f"{{{next(iter(values))}}}")
        return str(values[match[1]])

    return re.sub(r"\{(\w+)\}", value, template).strip()
