"""The page generator and the task sets: seeds, splits, refusals."""

import json
from pathlib import Path

import pytest

from workflow_scripts.coder.pages import LEVELS, SPLITS, procedural_page, procedural_set, procedural_task
from workflow_scripts.coder.tasksets import ProceduralSet, load_folder, load_table
from workflow_scripts.failures import InvalidInput

PAGES = {(level, split): list(procedural_set(level, split, 200)) for level in LEVELS for split in SPLITS}


def test_a_page_is_a_function_of_its_name() -> None:
    for pages in PAGES.values():
        for page in pages[:20]:
            assert procedural_task(page.id) == page


def test_splits_share_no_seed_and_no_page() -> None:
    for level in LEVELS:
        train, heldout = PAGES[level, "train"], PAGES[level, "heldout"]
        assert all(page.seed % 2 == 0 for page in train)
        assert all(page.seed % 2 == 1 for page in heldout)
    pages = [page.html for some in PAGES.values() for page in some]
    assert len(set(pages)) == len(pages)


def test_levels_grow() -> None:
    mean = [sum(len(page.html) for split in SPLITS for page in PAGES[level, split]) for level in LEVELS]
    assert mean == sorted(mean)


def test_pages_are_closed_documents_without_outside_references() -> None:
    for pages in PAGES.values():
        for page in pages:
            assert page.html.startswith("<!DOCTYPE html>")
            assert page.html.rstrip().endswith("</html>")
            assert "http" not in page.html
            assert "<script" not in page.html
            assert "<img" not in page.html


@pytest.mark.parametrize("arguments", [("huge", "train", 0), ("easy", "test", 0), ("easy", "train", -1)])
def test_unknown_pages_are_refused(arguments: tuple[str, str, int]) -> None:
    with pytest.raises(ValueError, match="levels"):
        procedural_page(*arguments)


def test_a_seed_picks_the_same_task_for_ever() -> None:
    tasks = ProceduralSet()
    assert tasks.pick(7, "mixed", "train") == procedural_page("medium", "train", 2)
    assert tasks.pick(7, "hard", "heldout") == procedural_page("hard", "heldout", 7)
    with pytest.raises(KeyError):
        tasks.get("procedural/easy/train/x")


def test_a_folder_becomes_a_set(tmp_path: Path) -> None:
    for number in range(30):
        path = tmp_path / "set" / f"{number}.html"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"<p>page {number}</p>" + "<b>x</b>" * number)
        path.with_suffix(".png").write_bytes(b"ignored")
    tasks = load_folder(tmp_path / "set", viewport=(800, 600))
    assert len(tasks) == 30
    assert {task.level for task in tasks} == set(LEVELS)
    assert tasks.get("set/29").level == "hard"
    assert tasks.get("set/29").width == 800
    assert tasks.pick(3, "mixed", "train") == tasks.pick(3, "mixed", "train")
    assert {task.split for task in tasks} == set(SPLITS)


def test_tables_become_sets(tmp_path: Path) -> None:
    import pandas as pd

    rows = [{"text": f"<h1>page {n}</h1>", "image": None} for n in range(12)]
    (tmp_path / "sight.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    pd.DataFrame(rows)[["text"]].to_parquet(tmp_path / "sight.parquet")
    lines, table = load_table(tmp_path / "sight.jsonl"), load_table(tmp_path / "sight.parquet")
    assert list(lines) == list(table)


def test_bad_sets_are_refused_with_the_place_and_the_correction(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="at least one page"):
        load_folder(tmp_path / "empty")
    (tmp_path / "empty" / "a.html").write_bytes(b"<p>\xff\xfe")
    with pytest.raises(InvalidInput, match=r"a\.html: encoding"):
        load_folder(tmp_path / "empty")
    (tmp_path / "a.jsonl").write_text('{"text": "<p>"}\n{"html": "<p>"}\n')
    with pytest.raises(InvalidInput, match="row 2: text"):
        load_table(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_text('{"text": "<p>"}\nnot json\n')
    with pytest.raises(InvalidInput, match="line 2"):
        load_table(tmp_path / "b.jsonl")
    with pytest.raises(InvalidInput, match="no such folder"):
        load_folder(tmp_path / "nowhere")
    (tmp_path / "a.csv").write_text("text\n")
    with pytest.raises(InvalidInput, match=r"\.csv"):
        load_table(tmp_path / "a.csv")
