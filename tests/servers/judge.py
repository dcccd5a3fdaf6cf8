"""A judge at a local server: tells by the system prompt which metric is asked for and answers by its rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from workflow_scripts.scoring.judges import CRITERIA, PROMPTS

from .fake_openai import Request, Response, text

METRICS = ("S_ad", "S_id", "S_use", "S_ele_lay", "S_cp", "S_rd", "S_rap", "S_mp")


def metric_of(request: Request) -> str | None:
    """Which metric a request asks for; None if it is no judge's request. Prompts may have been added to."""
    system = next((m["content"] for m in request.body.get("messages", []) if m["role"] == "system"), "")
    for metric in METRICS:
        if system.startswith((PROMPTS / f"{metric.lower()}_system.md").read_text().strip()[:200]):
            return metric
    return None


def answer(metric: str, value: Any, words: str = "As seen.") -> dict[str, Any]:
    """A valid answer.

    Args:
        value: S_ad the rating; S_id the class; S_use, S_cp, S_rd how many criteria are met; S_ele_lay both ratings;
            S_rap and S_mp whether it passed (S_mp at screen 0).
    """
    if metric == "S_ad":
        return {"score": value, "reasoning": words}
    if metric == "S_id":
        return {"inferred_action": value, "reasoning": words}
    if metric == "S_ele_lay":
        return {"element_alignment_score": value[0], "structural_fidelity_score": value[1], "reasoning": words}
    if metric == "S_mp":
        return {"passed": int(value), "first_satisfied_frame": 0 if value else -1, "evidence": words}
    met = {key: int(value is True or number < int(value)) for number, key in enumerate(CRITERIA[metric])}
    if metric == "S_rap":
        return {**met, "passed": int(all(met.values())), "failure_reason": "none", "evidence": words}
    failed = {"failure_modes": []} if metric == "S_use" else {}
    return {**met, "score": sum(met.values()), "reasoning": words, **failed}


def reply(request: Request, values: Mapping[str, Any], words: str = "As seen.") -> Response | None:
    """The reply of a judge that gives each metric of `values` its value; None to other requests."""
    metric = metric_of(request)
    return None if metric is None else text(json.dumps(answer(metric, values[metric], words)))
