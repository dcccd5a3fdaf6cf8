"""The report in a real Chromium: synthetic rows of some size to walk through, and a real run in which everything that a
model, planner, judge or task may say is an attack.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.sync_api import expect

from tests.servers.fake_openai import FakeOpenAI, Request, Response, text, tool_call
from tests.servers.judge import metric_of, reply
from tests.workflow.conftest import Workflow, write_tasks
from workflow_scripts import report_run
from workflow_scripts.report.render import json_block, link, page_name

from . import synthetic
from .conftest import visiting

ATTACK = (
    "</script><script>document.title='owned';alert(1)</script><img src=x onerror=\"document.title='owned'\">"
    "]]>--><svg onload=alert(2)><a href='javascript:alert(3)'>go</a>{{ 7*7 }}&amp;</pre></details>"
)
PAGE = f"<!DOCTYPE html><html><body style='margin:0'><h1>Page</h1><script>{ATTACK}</script></body></html>"


# --- names, links, data -----------------------------------------------------------------------------------------------


def test_page_names_are_safe_and_differ():
    assert page_name("login-user-s0") == "login-user-s0.html"
    odd = ["A", "a", "Index", "index", "con", "CON", "nul.txt", "a.", "x" * 100, "X" * 100, "a_b", "a.b", "com1"]
    names = [page_name(name) for name in odd]
    assert len({name.lower() for name in names}) == len(odd)
    for name in names:
        assert re.fullmatch(r"[a-z0-9][a-z0-9._~-]*\.html", name)
        assert len(name) < 120
        assert name.partition(".")[0] not in ("index", "con", "nul", "com1")


def test_links_are_relative_and_never_a_scheme():
    page = Path("results/report/rows/m/s/t.html")
    assert link(Path("results/rollouts/m/s/t/a b#c?d.png"), page) == "../../../../rollouts/m/s/t/a%20b%23c%3Fd.png"
    assert link(Path("results/report/rows/m/s/javascript:alert(1).html"), page) == "./javascript%3Aalert%281%29.html"


def test_data_blocks_hold_nothing_that_html_would_read():
    value = {"text": f"{ATTACK}\u2028<!--"}
    block = str(json_block(value))
    assert not set("<>&\u2028") & set(block)
    assert json.loads(block) == value


# --- walking through it -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def walk(tmp_path_factory) -> Path:
    """Three rows of 30 tasks × 6 steps."""
    return build(tmp_path_factory.mktemp("walk"), 30, 6)


def build(root: Path, tasks: int, steps: int) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        rows = synthetic.make(root, tasks, steps)
        for row in rows:
            report_run.row(row, synthetic.SCORES)
        report_run.index(rows, synthetic.SCORES, synthetic.TABLES)
    return root


def test_filters(chromium, walk):
    with visiting(chromium, walk) as visit:
        page = visit.open("index.html")
        count = page.locator("#count")
        assert count.inner_text() == "90 episodes"
        assert page.locator("#episodes li").count() == 60
        page.get_by_role("button", name="Show 30 more").click()
        assert page.locator("#episodes li").count() == 90
        page.get_by_label("Outcome").select_option("any model failure")
        assert count.inner_text() == "8 of 90 episodes"
        page.get_by_label("Row").select_option("blank / nohist")
        assert count.inner_text() == "4 of 90 episodes"
        assert page.locator("#episodes .how").all_inner_texts() == ["no image"] * 4
        page.get_by_role("button", name="Clear").click()
        expect(count).to_have_text("90 episodes")
        page.get_by_label("to", exact=True).fill("0")
        assert count.inner_text() == "8 of 90 episodes"
        page.get_by_label("to", exact=True).fill("")
        page.get_by_label("Order").select_option("highest score first")
        scores = [float(score) for score in page.locator("#episodes .score").all_inner_texts()]
        assert scores == sorted(scores, reverse=True)
        page.get_by_label("Find").fill("t017")
        assert count.inner_text() == "3 of 90 episodes"
        page.get_by_label("Find").fill("nothing like it")
        assert "No episode fits" in page.locator("#episodes").inner_text()


def test_clicking_through_and_back(chromium, walk):
    with visiting(chromium, walk) as visit:
        page = visit.open("index.html")
        page.get_by_role("link", name="copy_last / nohist").first.click()
        assert page.locator("#count").inner_text() == "30 episodes"
        page.get_by_role("link", name="t002", exact=True).click()
        assert page.locator("h1").inner_text() == "Do t002."
        page.get_by_role("link", name="next task →").click()
        assert page.locator(".step:not([hidden]) h2").inner_text().startswith("Step 0")
        page.locator(".strip a[data-step='3']").click()
        assert page.url.endswith("#step-3")
        assert "no_image" in page.locator(".step:not([hidden])").inner_text()
        page.get_by_role("link", name="all rows on this task").click()
        page.locator("select[name='b']").select_option("all other rows")
        assert page.locator("#matrix tbody tr").count() == 4
        page.locator("select[name='b']").select_option("blank / nohist")
        page.get_by_label("difference").check()
        page.reload()
        assert page.locator("select[name='b']").input_value() == "2"
        page.get_by_role("link", name="guiloop").click()
        assert page.locator("#count").inner_text() == "90 episodes"


def test_keyboard(chromium, walk):
    with visiting(chromium, walk) as visit:
        page = visit.open("rows/copy_last/nohist/t001.html")
        shown = page.locator(".step:not([hidden]) .index")
        for key, step in (
            ("ArrowRight", 1),
            ("ArrowRight", 2),
            ("ArrowLeft", 1),
            ("End", 5),
            ("ArrowRight", 5),
            ("Home", 0),
        ):
            page.keyboard.press(key)
            assert shown.inner_text() == f"Step {step}"
        page.keyboard.press("d")
        assert page.locator(".step:not([hidden]) .over").is_visible()
        # Everything can be reached by the tab key in order, and where the focus is can be seen.
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page = visit.open("tasks/offline/t001.html")
        page.keyboard.press("ArrowRight")
        assert page.locator("#matrix thead .current").inner_text() == "screen 1"
        page = visit.open("index.html")
        page.get_by_label("Find").focus()
        page.keyboard.press("ArrowRight")  # in a field, arrows belong to the field
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.name") == "row"


def test_dark_and_light(chromium, walk):
    def paper(page) -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    colors = {}
    for scheme in ("light", "dark"):
        with visiting(chromium, walk, scheme=scheme) as visit:
            page = visit.open("index.html")
            colors[scheme] = paper(page)
    assert colors["light"] != colors["dark"]
    with visiting(chromium, walk) as visit:
        page = visit.open("index.html")
        page.get_by_role("button", name="Dark").click()
        assert paper(page) == colors["dark"]
        page = visit.open("rows/copy_last/nohist/t001.html")
        assert paper(page) == colors["dark"]


@pytest.mark.parametrize("width", [400, 2000])
def test_no_page_is_wider_than_its_window(chromium, walk, width):
    with visiting(chromium, walk, width) as visit:
        for name in (
            "index.html",
            "rows/blank/nohist/index.html",
            "rows/blank/nohist/t001.html",
            "tasks/offline/t001.html",
        ):
            page = visit.open(name)
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert page.evaluate("[...document.images].every(i => i.loading === 'lazy' && i.width && i.height)")


def test_every_link_leads_to_a_file(walk):
    pages = list((walk / "results/report").rglob("*.html"))
    assert len(pages) == 1 + 3 * 31 + 30
    for page in pages:
        for target in re.findall(r'(?:href|src)="([^"#]+)', page.read_text()):
            assert target.startswith("data:") or (page.parent / unquote(target)).is_file(), (page, target)


def test_pages_of_tasks_that_are_gone_are_removed_and_equal_pages_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (row, *_) = synthetic.make(tmp_path, 2, 2, ("copy_last",))
    report_run.row(row, synthetic.SCORES)
    folder = tmp_path / "results/report/rows/copy_last/nohist"
    (folder / "old.html").write_text("old")
    before = (folder / "t000.html").stat().st_mtime_ns
    report_run.row(row, synthetic.SCORES)
    assert sorted(path.name for path in folder.iterdir()) == ["index.html", "t000.html", "t001.html"]
    assert (folder / "t000.html").stat().st_mtime_ns == before


@pytest.mark.slow
def test_two_hundred_tasks_of_25_screens_stay_light(chromium, tmp_path):
    root = build(tmp_path, 200, 24)
    report = root / "results/report"
    assert (report / "index.html").stat().st_size < 150_000
    assert max(path.stat().st_size for path in report.rglob("*.html")) < 200_000
    with visiting(chromium, root) as visit:
        page = visit.open("index.html")
        assert page.locator("#count").inner_text() == "600 episodes"
        assert page.evaluate("document.getElementsByTagName('*').length") < 2500
        for name in ("rows/copy_last/nohist/index.html", "rows/copy_last/nohist/t000.html", "tasks/offline/t000.html"):
            page = visit.open(name)
            assert page.evaluate("document.getElementsByTagName('*').length") < 3000


# --- hostile words ----------------------------------------------------------------------------------------------------


def hostile(request: Request) -> Response:
    judged = reply(request, {"S_ad": 3, "S_id": "none", "S_use": 2, "S_cp": 1, "S_rd": 1, "S_mp": False}, ATTACK)
    if judged is not None:
        assert metric_of(request)
        return judged
    if "tools" in request.body:
        if request.turn > 3:
            return tool_call({"action": "answer", "answer_text": ATTACK})
        actions = (
            {"action": "type_text", "text": ATTACK, "target": ATTACK},
            {"action": "scroll", "coordinate": [30, 30], "direction": "up", "target": ATTACK},
            {"action": "long_press", "coordinate": [20, 40]},
        )
        return tool_call({"thinking": ATTACK, **actions[request.turn - 1]}, content=ATTACK)
    return text(PAGE) if "scroll" not in request.user_text.lower() else text(ATTACK)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory) -> Path:
    workflow = Workflow(tmp_path_factory.mktemp("attacked"))
    root = write_tasks(workflow.directory / "set", "online", 1, 5)
    samples = root / "online_samples.jsonl"
    row = json.loads(samples.read_text())
    row.update(instruction=f"Do it. {ATTACK}", apps=[ATTACK], category=ATTACK)
    row["milestones"][0]["assertion"] = ATTACK
    samples.write_text(json.dumps(row))
    with FakeOpenAI(hostile) as server:
        there = {"base_url": server.base_url, "api_key_env": None, "max_attempts": 2}
        config = {
            "model": "copy_last,chat_html",
            "planner": "openai",
            "tasks": "set",
            "judge": "one",
            "planners": {"openai": {"kind": "openai", "model": "planner", **there}},
            "models": {"chat_html": {"endpoint": server.base_url, "api_key_env": None, "max_attempts": 2}},
            "judges": {"one": {"model": "judge", **there}},
        }
        (workflow.directory / "run.json").write_text(json.dumps(config))
        workflow.ok("--configfile", "run.json")
    return workflow.directory


def test_hostile_words_are_shown_and_never_run(chromium, attacked):
    report = attacked / "results/report"
    pages = sorted(str(path.relative_to(report)) for path in report.rglob("*.html"))
    assert len(pages) == 1 + 2 * 2 + 1
    with visiting(chromium, attacked) as visit:
        for name in pages:
            page = visit.open(name)
            page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
            for _ in range(4):
                page.keyboard.press("ArrowRight")
            assert page.title().endswith("· guiloop")
            assert "onerror=" in page.locator("body").inner_text()
            hrefs = page.evaluate("[...document.links].map(a => a.protocol)")
            assert set(hrefs) == {"file:"}
            allowed = {"SCRIPT": 2, "IFRAME": 0, "OBJECT": 0, "EMBED": 0, "FORM": 1}
            for tag, most in allowed.items():
                assert page.locator(tag).count() <= most
            inline = "e => [...e.attributes].some(a => a.name.startsWith('on') || a.name === 'style')"
            assert page.evaluate(f"[...document.querySelectorAll('*:not(#matrix)')].filter({inline}).length") == 0
        page = visit.open("rows/chat_html/nohist/t000.html")
        words = page.locator("body")
        assert words.locator("blockquote").first.text_content() == ATTACK
        assert PAGE in [source.text_content() for source in page.locator("pre.source").all()]


def test_the_policy_holds_where_escaping_would_fail(chromium, walk, tmp_path):
    """The same page with the attack written into it by hand: still nothing of it runs."""
    source = walk / "results/report/rows/copy_last/nohist/t001.html"
    attack = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    for name in ("rows/copy_last/nohist/owned.html", "owned.html"):
        made = walk / "results/report" / name
        original = source if "/" in name else walk / "results/report/index.html"
        made.write_text(original.read_text().replace("<h1>", f"{attack}<h1>"))
        page = chromium.new_page()
        page.goto(f"file://{made}")
        assert page.title().endswith("· guiloop")
        assert page.locator(".step:not([hidden])" if "/" in name else "#episodes li").count() >= 1
        page.close()
        made.unlink()


def test_snakemakes_own_report_holds_index_and_tables_with_captions(attacked):
    Workflow(attacked).ok("--configfile", "run.json", "--report", "own.html")
    page = (attacked / "own.html").read_text()
    for words in ("Every two rows of the online track", "One line per model and setting", "the list of all episodes"):
        assert words in page
