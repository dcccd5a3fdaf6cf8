"""GUI-CC's judged metrics: what each call shows a vision-language model, how its answer is read and scored.

    track    per transition                            per episode
    online   S_ad  S_id  S_use                         S_cp  S_rd  S_mp (one call per milestone)
    offline  S_ad  S_id  S_use  S_ele+S_lay (one call)  S_cp  S_rd  S_rap (one call per step)

Building a request (`step_calls`, `episode_calls`, `rap_call`, `mp_call`) and reading a reply (`parse`) are pure;
`judge` makes one call through the house's chat client. The texts in ``config/prompts/judge/`` are our own; inputs,
image sizes, scales, field names, strictness and the prefix rules are GUI-CC's. A reply that breaks a rule is a
`JudgeError`: the call stays unscored and blocks the aggregate, since a bad judge says nothing about a world model.

Every call is one file with an identity over prompt text, judge, settings, the digests of the exact images and the
task's words, so that whatever changed is judged again and nothing else. Left out: anything about which calls to run
when.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..chat import image_part, plain_text, text_part
from ..failures import InfrastructureFailure, InvalidInput, from_os_error
from ..identity import digest, file_digest
from ..records import SCHEMA_VERSION, read_json, write_json
from .episodes import MAX_FRAMES, Episode

if TYPE_CHECKING:
    from ..chat import ChatClient, Reply
    from ..tasks import Track

PROTOCOL_VERSION = 1
"""Part of every identity: raised when the make-up of a request or the reading of a reply changes."""
PROMPTS = Path(__file__).parents[2] / "config" / "prompts" / "judge"

CLASSES = (
    "tap",
    "long_press",
    "scroll",
    "type_text",
    "open_app",
    "navigate_home",
    "navigate_back",
    "wait",
    "none",
)
"""What S_id's judge may answer."""
CRITERIA: dict[str, tuple[str, ...]] = {
    "S_use": (
        "C1_valid_mobile_gui",
        "C2_render_integrity",
        "C3_text_legibility",
        "C4_component_coherence",
        "C5_interaction_readiness",
    ),
    "S_cp": (
        "C1_step_continuity",
        "C2_task_anchor_consistency",
        "C3_state_carryover",
        "C4_navigation_context_memory",
        "C5_long_horizon_history",
    ),
    "S_rd": (
        "C1_action_responsiveness",
        "C2_action_change_synchronization",
        "C3_transition_order_coherence",
        "C4_change_scope_control",
        "C5_no_freeze_or_temporal_degradation",
    ),
    "S_rap": (
        "P1_precondition_supported",
        "P2_action_effect_supported",
        "P3_next_action_supported_or_terminal",
    ),
}
"""The binary criteria of each metric that has some; the names a judge must answer with."""
FAILURE_REASONS = (
    "wrong_current_context",
    "action_target_missing",
    "action_not_reflected",
    "wrong_next_stage",
    "next_action_not_supported",
    "invalid_ui",
    "too_distorted",
    "terminal_not_completed",
    "terminal_wrong_app",
    "terminal_wrong_content",
    "none",
)
"""S_rap's `failure_reason`."""
STEP_METRICS: dict[Track, tuple[str, ...]] = {
    "online": ("S_ad", "S_id", "S_use"),
    "offline": ("S_ele_lay", "S_ad", "S_id", "S_use"),
}
"""Judge calls per transition. S_ele_lay gives two metrics."""
ORDERED: dict[Track, str] = {"online": "S_mp", "offline": "S_rap"}
"""The metric of each track that is a sequence of calls, ended by the first that fails."""


class JudgeError(InfrastructureFailure):
    """A judge whose answer cannot be used. Codes begin with ``judge_``; the detail holds the replies."""


class BadReply(ValueError):
    """A reply that breaks a rule; `code` names it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class JudgeSettings:
    """One judge.

    Attributes:
        name: its folder under ``results/scores/…/judge/``.
        model: what is asked for; the reply must name the same model, one of `answers_as`, or none.
        answers_as: other names under which that model answers (an alias may resolve to a dated name).
        attempts: how often a call whose reply breaks a rule is asked in all.
    """

    name: str
    model: str
    temperature: float | None = 0.0
    max_tokens: int = 4096
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    answers_as: tuple[str, ...] = ()
    attempts: int = 3

    def identity(self) -> dict[str, Any]:
        """What changes an answer; neither endpoint nor limits."""
        return {
            "model": self.model,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "extra_body": dict(self.extra_body),
        }


# ---- requests ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shot:
    """A screen as a judge is shown it: JPEG, at most `edge` pixels long, never enlarged.

    `rounding` is GUI-CC's, which differs between its tracks: sizes are rounded online and cut off offline.
    """

    path: Path
    edge: int
    quality: int
    rounding: Literal["nearest", "down"]

    def jpeg(self) -> bytes:
        """The encoded image. Raises InfrastructureFailure (``frame_missing``, ``frame_unreadable``)."""
        from PIL import Image

        try:
            with Image.open(self.path) as source:
                image = source.convert("RGB")
        except FileNotFoundError as error:
            raise InfrastructureFailure("frame_missing", f"no screen {self.path}", path=str(self.path)) from error
        except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError and struct.error
            raise InfrastructureFailure("frame_unreadable", f"{self.path}: {error}", path=str(self.path)) from error
        scale = self.edge / max(image.size)
        if scale < 1:
            whole = round if self.rounding == "nearest" else int
            width, height = (max(1, whole(side * scale)) for side in image.size)
            image = image.resize((width, height), Image.Resampling.LANCZOS)
        stream = io.BytesIO()
        image.save(stream, format="JPEG", quality=self.quality, optimize=True)
        return stream.getvalue()

    def identity(self) -> dict[str, Any]:
        """Digest of the file's bytes, and how it is shown."""
        try:
            sha256 = file_digest(self.path)
        except FileNotFoundError as error:
            raise InfrastructureFailure("frame_missing", f"no screen {self.path}", path=str(self.path)) from error
        except OSError as error:
            raise from_os_error(error, f"cannot read {self.path}") from error
        return {"sha256": sha256, "edge": self.edge, "quality": self.quality, "rounding": self.rounding}


@dataclass(frozen=True)
class JudgeCall:
    """One question to a judge.

    Attributes:
        metric: S_ad, S_id, S_use, S_ele_lay, S_cp, S_rd, S_rap or S_mp.
        index: transition from 0 on (S_mp: milestone from 0 on); None for a whole episode.
        system: text of the system message.
        content: texts and screens of the user message, in order.
        expects: what reading the reply needs: S_id ``class``; S_mp ``earliest`` and ``frames``.
    """

    metric: str
    index: int | None
    system: str
    content: tuple[str | Shot, ...]
    expects: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``S_ad_step_003`` or ``S_cp``: the file's name without ``.json``."""
        return self.metric if self.index is None else f"{self.metric}_step_{self.index:03d}"

    def messages(self) -> list[dict[str, Any]]:
        """The request's messages, images included."""
        parts = [
            text_part(item) if isinstance(item, str) else image_part(item.jpeg(), "image/jpeg") for item in self.content
        ]
        return [{"role": "system", "content": self.system}, {"role": "user", "content": parts}]


def call_inputs(call: JudgeCall) -> list[Any]:
    """What a call shows, JSON-able: texts as they are, screens by digest."""
    return [item if isinstance(item, str) else item.identity() for item in call.content]


def call_identity(call: JudgeCall, settings: JudgeSettings) -> str:
    """The cache key: prompts, judge and settings, digests of the exact images, the task's words, what is expected."""
    return digest(
        {
            "protocol": PROTOCOL_VERSION,
            "metric": call.metric,
            "judge": settings.identity(),
            "system": call.system,
            "content": call_inputs(call),
            "expects": dict(call.expects),
        }
    )


def step_calls(episode: Episode, step: int) -> list[JudgeCall]:
    """The calls on transition `step`; those of STEP_METRICS of the task's track."""
    action = episode.actions[step]
    track = episode.task.track
    before, after = (_shot(episode, "step", frame) for frame in episode.frames[step : step + 2])
    values = {
        "instruction": episode.task.instruction,
        "action": action_text(action, track),
        "action_json": json.dumps(public(action), ensure_ascii=False),
    }
    calls = [
        JudgeCall("S_ad", step, _prompt("s_ad_system"), (before, after, _prompt("s_ad_user", values))),
        JudgeCall(
            "S_id",
            step,
            _prompt("s_id_system"),
            (before, after, _prompt("s_id_user")),
            {"class": expected_class(action)},
        ),
        JudgeCall("S_use", step, _prompt("s_use_system"), (_prompt("s_use_user"), after)),
    ]
    if track == "offline":
        truth = _shot(episode, "step", _true(episode)[step + 1])
        content = ("True screen (image 1):", truth, "Predicted screen (image 2):", after, _prompt("s_ele_lay_user"))
        calls.insert(0, JudgeCall("S_ele_lay", step, _prompt("s_ele_lay_system"), content))
    return calls


def episode_calls(episode: Episode) -> list[JudgeCall]:
    """S_cp and S_rd: all frames and actions at once. Raises InvalidInput for more than `MAX_FRAMES` frames."""
    track = episode.task.track
    lines = [f"- step {step}: {action_text(action, track)}" for step, action in enumerate(episode.actions, 1)]
    calls = []
    for metric in ("S_cp", "S_rd"):
        values = {
            "instruction": episode.task.instruction,
            "actions": "\n".join(lines) or "(none)",
            "metric": {"S_cp": "how the context is kept", "S_rd": "how the interface responds"}[metric],
        }
        content: tuple[str | Shot, ...] = (_prompt("trajectory_user", values), *_numbered(episode))
        calls.append(JudgeCall(metric, None, _prompt(f"{metric.lower()}_system"), content))
    return calls


def rap_call(episode: Episode, step: int) -> JudgeCall:
    """S_rap on transition `step`: true and predicted screens before and after it (offline track)."""
    track, true = episode.task.track, _true(episode)
    action = episode.actions[step]
    last = step + 1 == len(episode.actions)
    values = {
        "instruction": episode.task.instruction,
        "step": step + 1,
        "steps": len(episode.actions),
        "action": action_text(action, track),
        "action_json": json.dumps(public(action), ensure_ascii=False),
        "next_action": "none, this is the last step: judge for P3 whether the task is completed"
        if last
        else action_text(episode.actions[step + 1], track),
    }
    shots = (true[step], true[step + 1], episode.frames[step], episode.frames[step + 1])
    content: tuple[str | Shot, ...] = (_prompt("s_rap_user", values), *(_shot(episode, "step", shot) for shot in shots))
    return JudgeCall("S_rap", step, _prompt("s_rap_system"), content)


def mp_call(episode: Episode, milestone: int, earliest: int) -> JudgeCall:
    """S_mp on one milestone with all frames (online track); `earliest` is the first frame it may come true in."""
    asked = episode.task.milestones[milestone]
    values = {
        "instruction": episode.task.instruction,
        "milestone": asked.id,
        "kind": "+".join(asked.type),
        "assertion": asked.assertion,
        "earliest": earliest,
    }
    content = (_prompt("s_mp_user", values), *_numbered(episode))
    expects = {"earliest": earliest, "frames": len(episode.frames)}
    return JudgeCall("S_mp", milestone, _prompt("s_mp_system"), content, expects)


def next_ordered(episode: Episode, results: Sequence[Mapping[str, Any]]) -> JudgeCall | None:
    """The next call of the track's ordered metric after `results` (in order), or None when it is decided.

    The first result that is not passed decides; a milestone may come true from the frame on in which the one before it
    did, so that one frame can fulfil several.
    """
    if results and not results[-1]["passed"]:
        return None
    if episode.task.track == "offline":
        return rap_call(episode, len(results)) if len(results) < len(episode.actions) else None
    if len(results) >= len(episode.task.milestones):
        return None
    return mp_call(episode, len(results), results[-1]["first_satisfied_frame"] if results else 0)


def prefix_score(results: Sequence[Mapping[str, Any]], total: int) -> float:
    """S_rap, S_mp: passed results before the first that failed, over `total` steps or milestones.

    Raises ValueError where the sequence is undecided (all passed, fewer than `total`) or goes on after a failure.
    """
    passed = [bool(result["passed"]) for result in results]
    prefix = passed.index(False) if False in passed else len(passed)
    decided = len(passed) == prefix + 1 if False in passed else len(passed) == total
    if total < 1 or len(passed) > total or not decided:
        raise ValueError(f"{len(passed)} results, {prefix} passed, do not decide an ordered metric of {total}")
    return prefix / total


def action_text(action: Mapping[str, Any], track: Track) -> str:
    """An action in words, as GUI-CC's judges are told it.

    Online the recorded one-line instruction comes first; offline it is ignored, and type and target are named.
    """
    instruction = str(action.get("low_level_instruction") or "").strip()
    if track == "online" and instruction:
        return instruction
    kind, target = str(action.get("type") or "unknown"), str(action.get("target") or "").strip()
    on = f' on "{target}"' if target else ""
    match kind:
        case "tap":
            return f"tap{on}"
        case "long_press":
            return f"long-press{on}"
        case "scroll":
            return f"scroll {action.get('direction') or ''}".strip() + on
        case "type_text":
            return f'type "{action.get("text") or ""}"' + (f' into "{target}"' if target else "")
        case "open_app":
            return f'open app "{action.get("app_name") or target}"'
        case "navigate_home":
            return "press Home"
        case "navigate_back":
            return "press Back"
        case "wait":
            return "wait"
        case _:
            return f"{kind}{on}"


def expected_class(action: Mapping[str, Any]) -> str:
    """The class that S_id's judge should infer.

    Recorded tasks open apps by a tap that says so; such a tap counts as open_app, since on the screens it is one.
    """
    kind = str(action.get("type") or "").strip().lower()
    words = " ".join(str(action.get(key) or "") for key in ("target", "low_level_instruction", "app_name")).lower()
    return "open_app" if kind == "tap" and re.search(r"\bopen\b.*\bapp\b", words) else kind


def public(value: Any) -> Any:
    """`value` without keys that begin with an underscore, at any depth."""
    if isinstance(value, Mapping):
        return {key: public(item) for key, item in value.items() if not str(key).startswith("_")}
    if isinstance(value, (list, tuple)):
        return [public(item) for item in value]
    return value


def _shot(episode: Episode, kind: Literal["step", "episode"], path: Path) -> Shot:
    edge, quality = {"step": (1280, 88), "episode": (768, 82)}[kind]
    return Shot(path, edge, quality, "nearest" if episode.task.track == "online" else "down")


def _numbered(episode: Episode) -> Iterator[str | Shot]:
    if len(episode.frames) > MAX_FRAMES:
        expected = f"at most {MAX_FRAMES} frames, as many as GUI-CC's judge takes (step_budget {MAX_FRAMES - 1})"
        raise InvalidInput(
            f"task {episode.task.task_id}",
            "step_budget",
            expected,
            f"{len(episode.frames)} frames",
            f'"step_budget": {MAX_FRAMES - 1}',
        )
    for number, frame in enumerate(episode.frames):
        yield f"Frame {number}."
        yield _shot(episode, "episode", frame)


def _true(episode: Episode) -> tuple[Path, ...]:
    if not episode.true:
        raise ValueError(f"{episode.task.task_id} has no true screens")
    return episode.true


@cache
def _template(name: str) -> str:
    path = PROMPTS / f"{name}.md"
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InvalidInput(
            str(path), "(whole file)", "a prompt", error.strerror or "unreadable", "restore it"
        ) from error


def _prompt(name: str, values: Mapping[str, Any] | None = None) -> str:
    """A prompt with its placeholders filled in one pass (braces in a value stay); without values, as it is."""
    template = _template(name)
    if values is None:
        return template

    def fill(match: re.Match[str]) -> str:
        if match[1] not in values:
            expected = "a placeholder among " + ", ".join(f"{{{key}}}" for key in values)
            raise InvalidInput(str(PROMPTS / f"{name}.md"), match[0], expected, match[0], f"{{{next(iter(values))}}}")
        return str(values[match[1]])

    return re.sub(r"\{(\w+)\}", fill, template)


# ---- replies -----------------------------------------------------------------------------------------------------


def parse(call: JudgeCall, text: str) -> dict[str, Any]:
    """Reads a judge's answer by the strict rules of its metric. Raises BadReply.

    Returns ``{"scores": {metric: float in [0, 1]}, "answer": the JSON object, …}`` with, besides,

    - S_ad ``raw``; score = raw / 10, raw in [0, 10]
    - S_ele_lay ``raw`` {S_ele, S_lay}; score = (raw - 1) / 9, raw in [1, 10]
    - S_id ``expected``, ``inferred``; score 1 if they agree
    - S_use, S_cp, S_rd ``criteria``; score = their sum / 5. Where the answer's own sum differs it is not used, and
      ``score_field_mismatch`` holds it
    - S_rap ``criteria``, ``passed`` (all three), ``passed_field_mismatch`` where the answer's own verdict differs
    - S_mp ``passed``, ``first_satisfied_frame`` (-1 if not passed)

    Numbers must be JSON numbers, finite and in range: ``"8"``, ``true``, ``NaN`` and 11 of 10 are refused.
    """
    answer = find_object(text)
    match call.metric:
        case "S_ad":
            raw = _number(answer, "score", 0, 10)
            _words(answer, "reasoning")
            return {"scores": {"S_ad": raw / 10}, "raw": raw, "answer": answer}
        case "S_ele_lay":
            element = _number(answer, "element_alignment_score", 1, 10)
            layout = _number(answer, "structural_fidelity_score", 1, 10)
            _words(answer, "reasoning")
            scores = {"S_ele": (element - 1) / 9, "S_lay": (layout - 1) / 9}
            return {"scores": scores, "raw": {"S_ele": element, "S_lay": layout}, "answer": answer}
        case "S_id":
            inferred = answer.get("inferred_action")
            inferred = inferred.strip().lower() if isinstance(inferred, str) else inferred
            if inferred not in CLASSES:
                raise BadReply("judge_bad_class", f"inferred_action is {inferred!r}, not one of {', '.join(CLASSES)}")
            _words(answer, "reasoning")
            expected = call.expects["class"]
            scores = {"S_id": float(inferred == expected)}
            return {"scores": scores, "expected": expected, "inferred": inferred, "answer": answer}
        case "S_use" | "S_cp" | "S_rd":
            criteria = _binaries(answer, CRITERIA[call.metric])
            _words(answer, "reasoning")
            if call.metric == "S_use":
                modes = answer.get("failure_modes")
                if not isinstance(modes, list) or not all(isinstance(mode, str) for mode in modes):
                    raise BadReply("judge_bad_list", f"failure_modes is {modes!r}, not a list of strings")
            total = sum(criteria.values())
            result = {"scores": {call.metric: total / len(criteria)}, "criteria": criteria, "answer": answer}
            if not _equals(answer.get("score"), total):
                result["score_field_mismatch"] = _storable(answer.get("score"))
            return result
        case "S_rap":
            criteria = _binaries(answer, CRITERIA["S_rap"])
            said = _binaries(answer, ("passed",))["passed"]
            _words(answer, "evidence")
            if answer.get("failure_reason") not in FAILURE_REASONS:
                listed = ", ".join(FAILURE_REASONS)
                raise BadReply(
                    "judge_bad_class", f"failure_reason is {answer.get('failure_reason')!r}, not of {listed}"
                )
            passed = int(all(criteria.values()))
            result = {"scores": {"S_rap": float(passed)}, "criteria": criteria, "passed": passed, "answer": answer}
            if said != passed:
                result["passed_field_mismatch"] = said
            return result
        case "S_mp":
            passed = _binaries(answer, ("passed",))["passed"]
            first = answer.get("first_satisfied_frame")
            if type(first) is not int:
                raise BadReply("judge_bad_frame", f"first_satisfied_frame is {first!r}, not a whole number")
            _words(answer, "evidence")
            earliest, frames = call.expects["earliest"], call.expects["frames"]
            if passed and not earliest <= first < frames:
                raise BadReply(
                    "judge_bad_frame", f"first_satisfied_frame is {first}, not in [{earliest}, {frames - 1}]"
                )
            if not passed and first != -1:
                raise BadReply("judge_bad_frame", f"first_satisfied_frame is {first}, but -1 goes with passed: 0")
            scores = {"S_mp": float(passed)}
            return {"scores": scores, "passed": passed, "first_satisfied_frame": first, "answer": answer}
    raise ValueError(f"no metric {call.metric}")


def find_object(text: str) -> dict[str, Any]:
    """The first JSON object of an answer: all of it, the inside of a code fence, or where a brace begins one.

    Thinking between ``<think>`` tags is cut away first. Raises BadReply (``judge_no_json``).
    """
    cleaned = re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL).strip()
    fenced = re.search(r"```(?:json)?\s*(.*?)\s*```", cleaned, flags=re.DOTALL | re.IGNORECASE)
    decoder = json.JSONDecoder()
    for candidate in ([fenced[1]] if fenced else []) + [cleaned]:
        for start in (match.start() for match in re.finditer(r"\{", candidate)):
            try:
                value, _ = decoder.raw_decode(candidate[start:])
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                return value
    raise BadReply("judge_no_json", f"the answer holds no JSON object: {text.strip()[:200]!r}")


def _number(answer: Mapping[str, Any], key: str, low: float, high: float) -> float:
    value = answer.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadReply("judge_bad_number", f"{key} is {value!r}, not a number")
    if not math.isfinite(value):
        raise BadReply("judge_bad_number", f"{key} is {value!r}, not finite")
    if not low <= value <= high:
        raise BadReply("judge_out_of_range", f"{key} is {value!r}, not in [{low}, {high}]")
    return float(value)


def _binaries(answer: Mapping[str, Any], keys: Sequence[str]) -> dict[str, int]:
    values = {}
    for key in keys:
        value = answer.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value not in (0, 1):
            raise BadReply("judge_bad_binary", f"{key} is {value!r}, not the number 0 or 1")
        values[key] = int(value)
    return values


def _words(answer: Mapping[str, Any], key: str) -> None:
    value = answer.get(key)
    if not isinstance(value, str) or not value.strip():
        raise BadReply("judge_missing_text", f"{key} is {value!r}, not a text")


def _equals(value: Any, total: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and value == total


def _storable(value: Any) -> Any:
    """`value`, with numbers that JSON has no word for as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _storable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_storable(item) for item in value]
    return value


# ---- calls -------------------------------------------------------------------------------------------------------


def judge(call: JudgeCall, settings: JudgeSettings, client: ChatClient, work: Sequence[str | int]) -> dict[str, Any]:
    """Makes a call and returns its record (see below). Raises JudgeError, or what the client raises.

    Args:
        work: names the work (row, task) for the jitter of pauses.

    Returns:
        ``{schema, record: "judge_call", identity, metric, index, judge, signature, result, reply, usage, attempts}``:
        `signature` is what `identity` is a digest of, texts by digest; `usage` is of the answer that counts, `attempts`
        holds all of them with their usage, reply text and, for refused ones, the broken rule.

    A reply that breaks a rule is asked for again up to ``settings.attempts`` times in all. A reply by another model is
    not: it would come again.
    """
    identity = call_identity(call, settings)
    messages = call.messages()
    attempts: list[dict[str, Any]] = []
    fault = BadReply("judge_no_json", "not asked")
    while len(attempts) < settings.attempts:
        reply = client.complete(
            messages,
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            extra_body=settings.extra_body,
            retry_seed=("judge", *work, call.name, len(attempts)),
        )
        text = plain_text(reply.content or "")
        attempts.append(_evidence(reply, text))
        try:
            _check_model(reply, settings)
            _check_finished(reply, text)
            result = parse(call, text)
        except BadReply as error:
            fault = error
            attempts[-1]["fault"] = {"code": error.code, "message": str(error)}
            if error.code == "judge_wrong_model":
                break
            continue
        return {
            "schema": SCHEMA_VERSION,
            "record": "judge_call",
            "identity": identity,
            "metric": call.metric,
            "index": call.index,
            "judge": settings.name,
            "signature": {
                "protocol": PROTOCOL_VERSION,
                "judge": settings.identity(),
                "system": digest(call.system),
                "content": [digest(item) if isinstance(item, str) else item for item in call_inputs(call)],
                "expects": dict(call.expects),
            },
            "result": _storable(result),
            "reply": {"text": text, "model": reply.model, "finish_reason": reply.finish_reason},
            "usage": dict(reply.usage or {}),
            "attempts": attempts,
        }
    raise JudgeError(
        fault.code,
        f"{settings.model} on {call.name} of {'/'.join(map(str, work))}: {fault} ({len(attempts)} answers)",
        metric=call.metric,
        index=call.index,
        attempts=attempts,
    )


def judge_to_file(
    call: JudgeCall, settings: JudgeSettings, client: ChatClient, path: Path, work: Sequence[str | int]
) -> dict[str, Any]:
    """`judge`, kept in a file: a record of the same identity is returned as it is, any other is made again."""
    known = read_call(path, call_identity(call, settings))
    if known is None:
        known = judge(call, settings, client, work)
        write_json(path, known)
    return known


def read_call(path: Path, identity: str) -> dict[str, Any] | None:
    """A call's record if it is readable, of this schema and of this identity."""
    try:
        record = read_json(path)
    except (OSError, ValueError):
        return None
    holds = isinstance(record, dict) and record.get("schema") == SCHEMA_VERSION and record.get("identity") == identity
    return record if holds else None


def call_path(scores: Path, task_id: str, judge_name: str, name: str) -> Path:
    """``{scores}/{task}/judge/{judge}/{metric}[_step_XXX].json``; `scores` is ``results/scores/{model}/{setting}``."""
    return scores / task_id / "judge" / judge_name / f"{name}.json"


def judge_episode(
    episode: Episode, settings: JudgeSettings, client: ChatClient, scores: Path, in_flight: int = 4
) -> dict[str, dict[str, Any]]:
    """All calls of one episode, each to its file; those already made are not made again.

    Args:
        scores: ``results/scores/{model}/{setting}``.
        in_flight: calls at a time; those of the ordered metric follow each other.

    Returns:
        {call name: record}. Model failures are not judged (they score 0): an empty dict.

    Raises the first failure, after the other calls have ended; whatever was answered is kept.
    """
    from concurrent.futures import ThreadPoolExecutor

    if episode.failure is not None:
        return {}
    task = episode.task
    calls = [call for step in episode.transitions for call in step_calls(episode, step)]
    calls += episode_calls(episode)

    def run(call: JudgeCall) -> dict[str, Any]:
        path = call_path(scores, task.task_id, settings.name, call.name)
        return judge_to_file(call, settings, client, path, (*scores.parts[-2:], task.task_id))

    def ordered() -> dict[str, dict[str, Any]]:
        records: dict[str, dict[str, Any]] = {}
        while (call := next_ordered(episode, [record["result"] for record in records.values()])) is not None:
            records[call.name] = run(call)
        return records

    with ThreadPoolExecutor(max(in_flight, 1)) as pool:
        chain = pool.submit(ordered)
        futures = {call.name: pool.submit(run, call) for call in calls}
    return {name: future.result() for name, future in futures.items()} | chain.result()


def _check_model(reply: Reply, settings: JudgeSettings) -> None:
    if reply.model not in (None, settings.model, *settings.answers_as):
        message = (
            f"asked for {settings.model!r}, answered by {reply.model!r} (answers_as lists names that are the same)"
        )
        raise BadReply("judge_wrong_model", message)


def _check_finished(reply: Reply, text: str) -> None:
    if reply.finish_reason == "length":
        raise BadReply("judge_cut_off", "the answer was cut off at max_tokens")
    if reply.refusal or reply.finish_reason == "content_filter":
        raise BadReply("judge_refused", f"the judge refused: {(reply.refusal or reply.finish_reason or '')[:200]}")
    if not text.strip():
        raise BadReply("judge_empty", "the answer is empty")


def _evidence(reply: Reply, text: str) -> dict[str, Any]:
    return {
        "text": text,
        "model": reply.model,
        "finish_reason": reply.finish_reason,
        "usage": dict(reply.usage or {}),
        "seconds": round(reply.request_seconds, 3),
        "requests": len(reply.attempts),
    }
