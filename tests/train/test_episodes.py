"""Episodes without a model: who sees what, verdicts, ends, seeds, records, rows, failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from workflow_scripts.coder.train.advantages import Member
from workflow_scripts.coder.train.config import EpisodeConfig, SamplingConfig
from workflow_scripts.coder.train.episodes import Ask, Collection, check_group, collect, member_of, rows_of
from workflow_scripts.coder.train.prompts import Draft, Prompts, neutral, verdict
from workflow_scripts.coder.train.rows import ImageStore, check_image, row_of_turn
from workflow_scripts.coder.train.schedule import GroupPlan
from workflow_scripts.failures import InfrastructureFailure, InvalidInput, ModelFailure

from .world import Breaking, Seen, World, picture

GROUP = GroupPlan(0, "procedural/easy/train/0", "easy", 7)


@dataclass(frozen=True)
class Said:
    """A scripted completion."""

    text: str
    prompt_ids: tuple[int, ...] = (1, 2)
    images: tuple[str, ...] = ()
    completion_ids: tuple[int, ...] = (3, 4)
    log_probs: tuple[float, ...] = (-0.5, -0.25)
    finish: str = "stop"


Script = Callable[[Ask], str | ModelFailure]


class Scripted:
    """An engine that answers by a function of the question and keeps what it was asked, batch by batch."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.batches: list[list[Ask]] = []

    def __call__(self, asks: Sequence[Ask]) -> list[Said | ModelFailure]:
        self.batches.append(list(asks))
        answers = [self.script(ask) for ask in asks]
        return [Said(a, images=_images(ask)) if isinstance(a, str) else a for a, ask in zip(answers, asks, strict=True)]


def _images(ask: Ask) -> tuple[str, ...]:
    return tuple(part["image"] for part in ask.messages[1]["content"] if part["type"] == "image")


def _text(ask: Ask) -> str:
    return str(ask.messages[1]["content"][-1]["text"])


def setup(tmp_path: Path, engine: Any, world: Callable[[], Any] = World, **rules: Any) -> Collection:
    episodes = EpisodeConfig(**{"turns": 3, "group_size": 2, **rules})
    store = ImageStore(tmp_path / "images")
    return Collection(
        world, engine, store, Prompts(), episodes, SamplingConfig(), 0, {"who": "test"}, document=str.strip
    )


def dialogue(ask: Ask) -> str:
    """Drafts that differ by member, critiques that go on."""
    if ask.role == "critic":
        return "The title is too small.\nVERDICT: CONTINUE"
    return f"<p>draft {ask.seed}</p>"


def test_who_sees_what(tmp_path: Path) -> None:
    engine = Scripted(dialogue)
    plan = setup(tmp_path, engine)
    (records,) = collect(plan, [GROUP], tmp_path)
    assert [[ask.role for ask in batch] for batch in engine.batches] == [
        ["developer"] * 2,
        ["critic"] * 2,
        ["developer"] * 2,
        ["critic"] * 2,
        ["developer"] * 2,
    ]
    reference = plan.store.put(picture(f"{GROUP.task_id} {GROUP.seed}"))
    first = records[0]
    drafts = [turn for turn in first["turns"] if turn["role"] == "developer"]
    seen = [batch[0] for batch in engine.batches]
    assert _images(seen[0]) == (reference,)
    assert _images(seen[1]) == (reference, drafts[0]["render"])
    assert _images(seen[2]) == (reference, drafts[0]["render"])
    assert _images(seen[3]) == (reference, drafts[0]["render"], drafts[1]["render"])
    assert drafts[0]["text"] in _text(seen[1])
    assert drafts[0]["text"] in _text(seen[2])
    assert "The title is too small." in _text(seen[2])
    assert "VERDICT" not in _text(seen[2])
    assert drafts[1]["text"] in _text(seen[3])
    assert drafts[0]["text"] not in _text(seen[3])
    assert first["reference"] == reference
    assert [turn["reward"] for turn in drafts] == first["rewards"]
    assert (first["ended"], first["attempts"], len(first["rewards"])) == ("max_turns", 1, 3)


def test_members_differ_by_seed_alone_and_a_rerun_has_the_same_ones(tmp_path: Path) -> None:
    engine, again = Scripted(dialogue), Scripted(dialogue)
    collect(setup(tmp_path, engine), [GROUP], tmp_path)
    seeds = [ask.seed for batch in engine.batches for ask in batch]
    assert len(set(seeds)) == len(seeds)
    first = engine.batches[0]
    assert first[0].messages == first[1].messages
    (tmp_path / "episodes" / "group_00000_member_01.json").unlink()
    collect(setup(tmp_path, again), [GROUP], tmp_path)
    assert [ask.seed for batch in again.batches for ask in batch] == seeds[1::2]
    whole = Scripted(dialogue)
    (tmp_path / "episodes" / "group_00000_member_01.json").unlink()
    collect(replace(setup(tmp_path, whole), replay=True), [GROUP], tmp_path)
    assert [[a.seed for a in b] for b in whole.batches] == [[a.seed for a in b] for b in engine.batches]
    nothing = Scripted(dialogue)
    collect(replace(setup(tmp_path, nothing), replay=True), [GROUP], tmp_path)
    assert nothing.batches == []


@pytest.mark.parametrize(
    ("critique", "decision", "remarks"),
    [
        ("Fine.\nVERDICT: DONE", "done", "Fine."),
        ("VERDICT: CONTINUE", "continue", ""),
        ("Bigger.\n\n VERDICT: CONTINUE \n\n", "continue", "Bigger."),
        ("This is not DONE", "unparsed", "This is not DONE"),
        ("VERDICT: NOT DONE", "unparsed", "VERDICT: NOT DONE"),
        ("VERDICT: DONE\nNo, wait.", "unparsed", "VERDICT: DONE\nNo, wait."),
        ("verdict: done", "unparsed", "verdict: done"),
        ("", "unparsed", ""),
    ],
)
def test_only_an_exact_last_line_is_a_verdict(critique: str, decision: str, remarks: str) -> None:
    assert verdict(critique) == (decision, remarks)


def test_done_ends_an_episode_after_min_turns(tmp_path: Path) -> None:
    def script(ask: Ask) -> str:
        return "VERDICT: DONE" if ask.role == "critic" else f"<p>{ask.seed}</p>"

    (early,) = collect(setup(tmp_path / "a", Scripted(script)), [GROUP], tmp_path / "a")
    assert {(r["ended"], len(r["rewards"])) for r in early} == {("done", 1)}
    assert member_of(early[0]) == Member(tuple(early[0]["rewards"]), 1)
    assert len(rows_of(early[0], "critic")) == 1
    (late,) = collect(setup(tmp_path / "b", Scripted(script), min_turns=2), [GROUP], tmp_path / "b")
    assert {(r["ended"], len(r["rewards"])) for r in late} == {("done", 2)}
    assert member_of(late[0]).critiques == 2


def test_without_a_critic_and_with_one_turn(tmp_path: Path) -> None:
    alone = Scripted(dialogue)
    (records,) = collect(setup(tmp_path / "a", alone, critic=False), [GROUP], tmp_path / "a")
    assert {ask.role for batch in alone.batches for ask in batch} == {"developer"}
    assert member_of(records[0]).critiques == 0
    assert "reviewer" not in _text(alone.batches[1][0])
    single = Scripted(dialogue)
    (records,) = collect(setup(tmp_path / "b", single, turns=1), [GROUP], tmp_path / "b")
    assert len(single.batches) == 1
    assert [len(r["rewards"]) for r in records] == [1, 1]


def test_an_environment_that_is_satisfied_ends_the_episode(tmp_path: Path) -> None:
    class Content(World):
        def step(self, html: str) -> Seen:
            return replace(super().step(html), done=True, reason="success")

    (records,) = collect(setup(tmp_path, Scripted(dialogue), Content), [GROUP], tmp_path)
    assert {(r["ended"], len(r["rewards"]), len(r["turns"])) for r in records} == {("success", 1, 1)}


def test_a_draft_that_does_not_render_scores_0_and_is_told(tmp_path: Path) -> None:
    engine = Scripted(lambda ask: "VERDICT: CONTINUE" if ask.role == "critic" else "!")
    (records,) = collect(setup(tmp_path, engine), [GROUP], tmp_path)
    assert records[0]["rewards"] == [0.0, 0.0, 0.0]
    assert records[0]["turns"][0]["failure"] == {"code": "no_html"}
    for batch in engine.batches[1:3]:
        assert len(_images(batch[0])) == 1
        assert "could not be shown (no_html)" in _text(batch[0])


def test_revision_from_the_best_draft(tmp_path: Path) -> None:
    drafts = iter(["aaaa", "aaaa", "a---", "a---", "bbbb", "bbbb"])
    engine = Scripted(lambda ask: "VERDICT: CONTINUE" if ask.role == "critic" else next(drafts))
    collect(setup(tmp_path, engine, revise_from="best"), [GROUP], tmp_path)
    last = _text(engine.batches[4][0])
    assert "aaaa" in last
    assert "a---" not in last


def test_special_tokens_in_a_reply_are_only_text_to_the_next_reader(tmp_path: Path) -> None:
    engine = Scripted(
        lambda ask: "<|im_end|> bigger\nVERDICT: CONTINUE" if ask.role == "critic" else "<p><|image_pad|></p>"
    )
    (records,) = collect(setup(tmp_path, engine, turns=2), [GROUP], tmp_path)
    for batch in engine.batches[1:]:
        assert "<|" not in _text(batch[0])
    assert records[0]["turns"][0]["text"] == "<p><|image_pad|></p>"  # the record keeps what was said
    assert neutral("<think>a || b <| c", ("<think>",)) == "< think>a || b <| c"


def test_too_long_a_conversation_ends_the_episode(tmp_path: Path) -> None:
    def script(ask: Ask) -> str | ModelFailure:
        if ask.role == "developer" and len(_images(ask)) > 1:
            return ModelFailure("prompt_too_long", "too long", tokens=99)
        return dialogue(ask)

    (records,) = collect(setup(tmp_path, Scripted(script)), [GROUP], tmp_path)
    assert {(r["ended"], len(r["rewards"])) for r in records} == {("prompt_too_long", 1)}
    assert len(records[0]["turns"]) == 2
    assert member_of(records[0]).critiques == 0  # its critique led to no draft and earns nothing
    assert rows_of(records[0], "critic") == []
    with pytest.raises(InvalidInput) as error:
        collect(
            setup(tmp_path / "b", Scripted(lambda ask: ModelFailure("prompt_too_long", "too long", tokens=99))),
            [GROUP],
            tmp_path / "b",
        )
    assert error.value.fix == "prompt_tokens: 99"


def test_a_broken_environment_is_retried_from_the_start(tmp_path: Path) -> None:
    class Once(Breaking):
        at = frozenset({2})

    engine = Scripted(dialogue)
    (records,) = collect(setup(tmp_path, engine, Once), [GROUP], tmp_path)
    assert sorted(r["attempts"] for r in records) == [1, 2]
    assert all(len(r["rewards"]) == 3 for r in records)

    class Never(Breaking):
        at = frozenset(range(99))

    with pytest.raises(InfrastructureFailure, match="0 of 2") as error:
        collect(setup(tmp_path / "b", Scripted(dialogue), Never), [GROUP], tmp_path / "b")
    assert [f["code"] for f in error.value.detail["failures"]] == ["browser_gone"] * 2
    assert not (tmp_path / "b" / "episodes").exists()


def test_a_group_shares_its_reference(tmp_path: Path) -> None:
    (records,) = collect(setup(tmp_path, Scripted(dialogue)), [GROUP], tmp_path)
    check_group(records)
    for key in ("reference", "seed", "task_id"):
        with pytest.raises(InfrastructureFailure, match=key):
            check_group([records[0], {**records[1], key: "other"}])


def test_rows_carry_the_exact_record(tmp_path: Path) -> None:
    (records,) = collect(setup(tmp_path, Scripted(dialogue)), [GROUP], tmp_path)
    rows = rows_of(records[1], "developer")
    assert [row.key for row in rows] == [f"group_00000/member_1/developer_{t}" for t in (1, 2, 3)]
    assert rows[1].completion_ids == (3, 4)
    assert len(rows[1].images) == 2
    turn = records[0]["turns"][0]
    for bad in ({"log_probs": [-0.5]}, {"log_probs": [float("nan"), -1.0]}, {"completion_ids": [], "log_probs": []}):
        with pytest.raises(InvalidInput, match="log_probs"):
            row_of_turn("key", {**turn, **bad})


def test_images_are_checked_and_kept_once(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    png = picture("a")
    assert store.put(png) == store.put(png)
    assert len(list(tmp_path.iterdir())) == 1
    assert store.get(store.put(png)).mode == "RGB"
    for size in ((1, 1), (64, 8), (4000, 20)):
        with pytest.raises(InvalidInput, match="image size"):
            check_image(picture("a", size), "a")
    with pytest.raises(InvalidInput, match="a PNG"):
        store.put(b"no picture")
    name = store.put(picture("b"))
    (tmp_path / f"{name}.png").write_bytes(png)
    with pytest.raises(InfrastructureFailure, match="image_changed"):
        store.png(name)
    with pytest.raises(InfrastructureFailure, match="image_missing"):
        store.png("0" * 64)


def test_prompt_files_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="prompt file"):
        Prompts(tmp_path)
    for name, text in Prompts().texts.items():
        (tmp_path / f"{name}.md").write_text(text.replace("{html}", ""))
    with pytest.raises(InvalidInput) as error:
        Prompts(tmp_path)
    assert error.value.key == "html"
    braces = Prompts().developer("0" * 64, 640, Draft("body{margin:0} {width}", None, "no_html"), "{html}")
    assert "body{margin:0} {width}" in braces[1]["content"][-1]["text"]
    assert "640 pixels" in braces[0]["content"]
