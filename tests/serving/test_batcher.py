"""The queue's rules: who goes together, who goes first, what happens at its limits."""

from __future__ import annotations

import threading

import pytest

from workflow_scripts.serving.batcher import Batcher, QueueFull


def filled(*requests: tuple[str, str], max_rows: int = 4, max_queue: int = 64) -> Batcher:
    batcher = Batcher(max_rows, max_queue)
    for task, group in requests:
        batcher.submit(task, group, f"{task}/{group}")
    return batcher


def drain(batcher: Batcher) -> list[list[str]]:
    batches = []
    while batch := batcher.take(0.0):
        batches.append([ticket.task for ticket in batch])
        batcher.done(len(batch), 0.001)
    return batches


def test_only_equal_groups_share_a_call() -> None:
    batcher = filled(("a", "x"), ("b", "y"), ("c", "x"), ("d", "y"))
    assert drain(batcher) == [["a", "c"], ["b", "d"]]


def test_a_call_has_at_most_max_rows() -> None:
    batcher = filled(*[(f"t{i}", "x") for i in range(10)])
    assert [len(batch) for batch in drain(batcher)] == [4, 4, 2]


def test_a_task_that_floods_the_queue_delays_only_itself() -> None:
    batcher = filled(*[("hog", "x")] * 12, ("late", "x"), max_rows=2)
    assert "late" in drain(batcher)[0]


def test_a_rare_group_is_served_in_its_turn_while_another_keeps_coming() -> None:
    batcher = filled(("common0", "x"), ("rare", "y"), max_rows=2)
    served: list[str] = []
    for number in range(1, 10):
        batch = batcher.take(0.0)
        served += [ticket.task for ticket in batch]
        batcher.done(len(batch), 0.001)
        batcher.submit(f"common{number}", "x", None)
    assert "rare" in served[:4]


def test_sixteen_closed_loop_tasks_get_equal_shares() -> None:
    batcher = Batcher(4, 64)
    counts = {f"t{i}": 0 for i in range(16)}
    for task in counts:
        batcher.submit(task, "x", None)
    for _ in range(80):
        batch = batcher.take(0.0)
        batcher.done(len(batch), 0.001)
        for ticket in batch:
            counts[ticket.task] += 1
            batcher.submit(ticket.task, "x", None)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    batcher = filled(*[(f"t{i}", "x") for i in range(8)], max_queue=8)
    with pytest.raises(QueueFull) as caught:
        batcher.submit("late", "x", None)
    assert caught.value.retry_after_s >= 1


def test_one_task_may_hold_a_quarter_of_the_queue() -> None:
    batcher = filled(("hog", "x"), ("hog", "x"), max_queue=8)
    with pytest.raises(QueueFull):
        batcher.submit("hog", "x", None)
    batcher.submit("other", "x", None)


def test_out_of_memory_halves_that_group_and_stays() -> None:
    batcher = filled(*[(f"t{i}", "x") for i in range(8)], max_rows=8)
    assert len(batcher.take(0.0)) == 8
    assert batcher.out_of_memory("x", 8) == 4
    assert batcher.out_of_memory("x", 4) == 2
    assert batcher.out_of_memory("x", 1) == 1
    assert batcher.limit("x") == 1
    assert batcher.limit("y") == 8


def test_a_cancelled_request_is_not_run() -> None:
    batcher = Batcher(4, 64)
    first, second = batcher.submit("a", "x", None), batcher.submit("b", "x", None)
    batcher.cancel(first)
    assert batcher.take(0.0) == [second]
    assert first.future.cancelled()


def test_the_taker_wakes_for_a_late_request() -> None:
    batcher = Batcher(4, 64)
    threading.Timer(0.05, batcher.submit, ("a", "x", None)).start()
    assert [ticket.task for ticket in batcher.take(10.0)] == ["a"]
