"""Hostile documents end in a reward or the model's failure. 2,000 of them: `python -m workflow_scripts.coder.fuzz`."""

from workflow_scripts.coder.blocks import Camera
from workflow_scripts.coder.fuzz import KINDS, documents, endings
from workflow_scripts.coder.pages import procedural_page


def test_documents_are_seeded() -> None:
    assert list(documents(30, 1)) == list(documents(30, 1))
    assert list(documents(30, 1)) != list(documents(30, 2))


def test_hostile_documents_end_and_the_next_page_is_unharmed(camera: Camera) -> None:
    page = procedural_page("easy", "train", 0)
    before = camera.look(page.html, page.width, page.height)
    found = endings(Camera(camera.pool, timeout_s=2.0), 150, seed=7)
    assert len(found) == 150
    assert {ending.kind for ending in found} == set(KINDS)
    scored = [ending for ending in found if ending.outcome == "scored"]
    assert len(scored) > 100
    after = camera.look(page.html, page.width, page.height)
    assert (after.image == before.image).all()
    assert after.text == before.text
