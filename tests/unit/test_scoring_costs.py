"""Costs from the shapes of evidence that planner, worlds and judges leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from workflow_scripts.failures import InfrastructureFailure
from workflow_scripts.scoring.costs import Cost, row_costs

CHAT = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def counted(evidence: Any) -> tuple[int, int, int, int]:
    cost = Cost()
    cost.count(evidence)
    return cost.calls, cost.input_tokens, cost.output_tokens, cost.unreported


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        ({}, (0, 0, 0, 0)),
        ({"planner_attempts": [{"usage": CHAT}, {"error": {"code": "x"}, "usage": None}]}, (2, 100, 10, 1)),
        ({"attempts": [{"usage": CHAT}, {"usage": CHAT}], "usage": CHAT}, (2, 200, 20, 0)),
        # an image reply reports beside its attempts, which say nothing
        (
            {"attempts": [{"status": 503}, {"status": 200}], "usage": {"input_tokens": 7, "output_tokens": 5}},
            (2, 7, 5, 1),
        ),
        ({"usage": {"promptTokenCount": 3, "candidatesTokenCount": 4}}, (1, 3, 4, 0)),
        ({"image": {"usage": CHAT}, "text": {"attempts": [{"usage": CHAT}]}}, (2, 200, 20, 0)),
        ({"attempts": [{"usage": CHAT, "requests": 3}]}, (3, 100, 10, 2)),
        ({"usage": {"prompt_tokens": "12", "completion_tokens": -1}}, (1, 0, 0, 1)),
        ({"usage": None, "attempts": "none"}, (0, 0, 0, 0)),
    ],
)
def test_calls_and_tokens(evidence, expected):
    assert counted(evidence) == expected


def put(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def test_a_row(tmp_path):
    rollouts, scores = tmp_path / "rollouts", tmp_path / "scores"
    for step in range(2):
        folder = rollouts / "task" / f"step_{step:03d}"
        put(folder / "agent_evidence.json", {"planner_attempts": [{"usage": CHAT}], "plan": ""})
        put(folder / "action.json", {"status": "acted", "timing": {"seconds": 2.5}})
        evidence = {"usage": CHAT, "served_by": {"gpu_seconds": 1.5}}
        put(folder / "prediction.json", {"status": "predicted", "evidence": evidence, "timing": {"seconds": 4}})
    failure = {"code": "no_html", "detail": {"attempts": [{"usage": CHAT}]}}
    put(rollouts / "task" / "step_002" / "prediction.json", {"status": "failed", "failure": failure})
    put(rollouts / "task" / "step_003" / "prediction.json", {"status": "skipped"})
    attempts = [{"usage": CHAT, "seconds": 1.0, "requests": 1}, {"usage": CHAT, "seconds": 2.0, "requests": 1}]
    put(scores / "task" / "judge" / "j" / "S_cp.json", {"usage": CHAT, "attempts": attempts})
    costs = row_costs(rollouts, scores)
    assert costs["planner"] == Cost(2, 2, 200, 20, 0, 5.0, 0.0)
    assert costs["world"] == Cost(3, 3, 300, 30, 0, 8.0, 3.0)
    assert costs["judge"] == Cost(1, 2, 200, 20, 0, 3.0, 0.0)
    assert costs["total"] == Cost(6, 7, 700, 70, 0, 16.0, 3.0)
    assert row_costs(rollouts)["judge"] == Cost()
    put(rollouts / "task" / "step_002" / "prediction.json", '{"status": ')
    with pytest.raises(InfrastructureFailure) as caught:
        row_costs(rollouts)
    assert caught.value.code == "unreadable_record"
