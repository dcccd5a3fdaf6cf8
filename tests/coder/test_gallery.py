"""The gallery is one self-contained page that shows every pair, failures included."""

from pathlib import Path

import pytest

from workflow_scripts.coder.blocks import Camera
from workflow_scripts.coder.gallery import Entry, folder_entries, gallery, main
from workflow_scripts.coder.pages import procedural_page
from workflow_scripts.coder.scorers import VisibleScorer
from workflow_scripts.failures import InvalidInput


def test_every_pair_is_shown_and_nothing_is_fetched(camera: Camera) -> None:
    task = procedural_page("medium", "heldout", 8)
    entries = [Entry("truth", task, task.html), Entry("<b>bad</b>", task, ""), Entry("long", task, "x" * 200_000)]
    page = gallery(entries, VisibleScorer(camera=camera))
    assert page.count("<section>") == 3
    assert "1.000" in page
    assert "&lt;b&gt;bad" in page
    assert "reward_blank" in page
    assert "render_too_long" in page
    assert "http" not in page.replace("http-equiv", "")
    assert "<script" not in page


def test_folders_are_paired_by_name(tmp_path: Path) -> None:
    for folder, name in (("pages", "a"), ("drafts", "a")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.html").write_text(f"<p>{folder}</p>")
    output = tmp_path / "out" / "gallery.html"
    main([str(output), str(tmp_path / "pages"), str(tmp_path / "drafts")])
    assert output.read_text().count("<section>") == 1
    (tmp_path / "drafts" / "b.html").write_text("<p>b</p>")
    with pytest.raises(InvalidInput, match="b"):
        folder_entries(tmp_path / "pages", tmp_path / "drafts")
