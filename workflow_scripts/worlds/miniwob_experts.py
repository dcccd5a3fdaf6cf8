"""Scripted experts for MiniWoB pages, and the built-in tasks that are recorded from them.

An expert reads the page's structure to find out what to do, but acts only through `Expert`'s methods, which carry out
actions of the vocabulary at points of the frame: what it does, an agent that sees the screen can do. While it acts it
names the milestones: what the screen must show by now. Used when the built-in tasks are made and never at run time.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from ..actions import Action
from .miniwob import FRAME_SIDE, GOAL_BAR, Episode

# Where an element can be tapped (CSS pixels of the viewport): a point of its first box, the part of the viewport that
# no scrolling ancestor cuts off, and whether a tap there would reach it.
_PLACE = """(element, [top, bottom, across]) => {
  const box = [...element.getClientRects()].find(r => r.width && r.height);
  if (!box) return null;
  const x = box.x + box.width * across, y = box.y + box.height / 2;
  for (let e = element.parentElement; e && e != document.documentElement; e = e.parentElement) {
    if (getComputedStyle(e).overflowY == 'visible') continue;
    const r = e.getBoundingClientRect();
    top = Math.max(top, r.top); bottom = Math.min(bottom, r.bottom);
  }
  const hit = document.elementFromPoint(x, y);
  return {x, y, top, bottom, reached: !!hit && (element.contains(hit) || hit.contains(element))};
}"""


@dataclass
class Recorded:
    """One action and the screen (PNG) after it."""

    action: Action
    png: bytes


@dataclass
class Expert:
    """A running recording: carries out actions, keeps each with its after-screen, and collects milestones."""

    episode: Episode
    steps: list[Recorded] = field(default_factory=list)
    milestones: list[dict[str, Any]] = field(default_factory=list)

    @property
    def goal(self) -> str:
        return self.episode.instruction

    def quoted(self) -> list[str]:
        """The texts in double quotes in the instruction."""
        return re.findall(r'"(.*?)"', self.goal)

    def find(self, pattern: str) -> tuple[str, ...]:
        """The groups of `pattern` in the instruction. Raises LookupError where it does not fit."""
        match = re.search(pattern, self.goal)
        if match is None:
            raise LookupError(f"the instruction {self.goal!r} does not fit {pattern!r}")
        return tuple(match.groups())

    async def js(self, expression: str, argument: Any = None) -> Any:
        return await self.episode.page.evaluate(expression, argument)

    async def count(self, selector: str) -> int:
        return await self.episode.page.locator(selector).count()

    def expect(self, assertion: str, *types: str) -> None:
        """Adds a milestone: a statement about the screen that holds by now. The last one must be `success`."""
        identifier = f"m{len(self.milestones) + 1}"
        self.milestones.append({"id": identifier, "type": list(types or ("progress",)), "assertion": assertion})

    def success(self, assertion: str, *types: str) -> None:
        self.expect(assertion, *types, "terminal_success")

    async def act(self, action: Action) -> None:
        await self.episode.perform(action)
        self.steps.append(Recorded(action, await self.episode.frame()))

    async def locate(self, selector: str, nth: int, target: str, across: float = 0.5) -> tuple[int, int]:
        """The frame pixel at which to touch the element, at a part of its width; scrolls there first, by actions."""
        locator = self.episode.page.locator(selector).nth(nth)
        for _ in range(10):
            place = await locator.evaluate(_PLACE, [GOAL_BAR + 2, GOAL_BAR + FRAME_SIDE - 2, across])
            if place is None:
                raise LookupError(f"{selector} [{nth}] is not on the screen")
            if place["top"] <= place["y"] <= place["bottom"]:
                if not place["reached"]:
                    raise LookupError(f"{selector} [{nth}] is covered")
                return self._pixel(place["x"]), self._pixel(place["y"] - GOAL_BAR)
            direction = "up" if place["y"] > place["bottom"] else "down"
            middle = (place["top"] + place["bottom"]) / 2 - GOAL_BAR
            point = (self._pixel(FRAME_SIDE / 2), self._pixel(middle))
            await self.scroll(point, direction, f"bring {target} into view")
        raise LookupError(f"{selector} [{nth}] cannot be scrolled into view")

    def _pixel(self, css: float) -> int:
        return round(css * self.episode.environment.scale)

    async def tap(self, selector: str, target: str, nth: int = 0, across: float = 0.5) -> None:
        x, y = await self.locate(selector, nth, target, across)
        await self.act(Action("tap", x, y, target=target, instruction=f"Tap {target}."))

    async def long_press(self, selector: str, target: str) -> None:
        x, y = await self.locate(selector, 0, target)
        await self.act(Action("long_press", x, y, target=target, instruction=f"Press {target} and hold."))

    async def type(self, text: str, target: str) -> None:
        await self.act(Action("type_text", text=text, target=target, instruction=f'Type "{text}" into {target}.'))

    async def fill(self, selector: str, text: str, target: str, nth: int = 0) -> None:
        await self.tap(selector, target, nth)
        await self.type(text, target)

    async def wait(self) -> None:
        await self.act(Action("wait", instruction="Wait."))

    async def scroll(self, point: tuple[int, int], direction: str, purpose: str) -> None:
        instruction = f"Swipe {direction} to {purpose}."
        await self.act(Action("scroll", *point, direction=direction, target="the screen", instruction=instruction))

    async def scroll_inside(self, selector: str, direction: str, done: str, purpose: str) -> None:
        """Scrolls at the middle of an element until the JavaScript condition `done` holds for it."""
        x, y = await self.locate(selector, 0, "the text")
        locator = self.episode.page.locator(selector).first
        while not await locator.evaluate(done):
            await self.scroll((x, y), direction, purpose)


async def login(e: Expert) -> None:
    user, password = e.quoted()
    await e.fill("#username", user, "the Username field")
    e.expect(f'The Username field shows "{user}".')
    await e.fill("#password", password, "the Password field")
    e.expect(f"The Password field shows {len(password)} masked characters.")
    await e.tap("#subbtn", "the Login button")
    both = f'The Username field still shows "{user}" and the Password field {len(password)} masked characters'
    e.success(f"{both}, and the Login button has been pressed.", "memory_persistence")


async def login_popup(e: Expert) -> None:
    user, password = e.quoted()
    for selector, text, name in (("#username", user, "Username"), ("#password", password, "Password")):
        await e.tap(selector, f"the {name} field")
        if await e.count("#popup-cancel"):
            e.expect('A pop-up covers the form and asks "Exit to home page?" with the buttons OK and Cancel.')
            await e.tap("#popup-cancel", "the Cancel button of the pop-up")
            e.expect("The pop-up is gone and the login form is as it was before it.", "memory_persistence")
            await e.tap(selector, f"the {name} field")
        await e.type(text, f"the {name} field")
    e.expect(f'The Username field shows "{user}" and the Password field {len(password)} masked characters.')
    await e.tap("#subbtn", "the OK button")
    e.success("The form is filled in, no pop-up is open, and the OK button has been pressed.")


async def enter_password(e: Expert) -> None:
    (password,) = e.quoted()
    await e.fill("#password", password, "the Password field")
    e.expect(f"The Password field shows {len(password)} masked characters.")
    await e.fill("#verify", password, "the Verify password field")
    e.expect(f"Both fields show {len(password)} masked characters.", "progress", "memory_persistence")
    await e.tap("#subbtn", "the Submit button")
    e.success("Both fields are filled with equally many masked characters and Submit has been pressed.")


async def enter_text(e: Expert) -> None:
    (text,) = e.quoted()
    await e.fill("#tt", text, "the text field")
    e.expect(f'The text field shows "{text}".')
    await e.tap("#subbtn", "the Submit button")
    e.success(f'The text field still shows "{text}" and Submit has been pressed.', "memory_persistence")


async def checkboxes(e: Expert) -> None:
    (listed,) = e.find(r"Select (.*) and click")
    names = listed.split(", ")
    for number, name in enumerate(names, 1):
        await e.tap(f"label:has-text('{name}') input", f'the checkbox "{name}"')
        if number in (1, len(names)):
            e.expect(f"Checked: {', '.join(names[:number])}. All other checkboxes are empty.")
    await e.tap("#subbtn", "the Submit button")
    e.success(f"Exactly {', '.join(names)} are checked and Submit has been pressed.", "memory_persistence")


async def button_delay(e: Expert) -> None:
    (seconds,) = e.find(r"wait (\d+) seconds")
    await e.tap("#subbtn", "the button ONE")
    e.expect("The buttons ONE and TWO are where they were; ONE has been pressed.")
    for _ in range(int(seconds) - 1):  # one second passes with every action
        await e.wait()
    e.expect(f"Nothing has changed while {seconds} seconds went by.", "memory_persistence")
    await e.tap("#subbtn2", "the button TWO")
    e.success("Both buttons are still there and TWO has been pressed after ONE.")


async def tabs(e: Expert) -> None:
    (word,) = e.quoted()
    visible = "w => [...document.querySelectorAll('.alink')].some(a => a.innerText == w && a.offsetParent)"
    number = 0
    while not await e.js(visible, word):
        number += 1
        await e.tap("#area li a", f"tab {number + 1}", number)
        e.expect(f"Tab {number + 1} is selected and its text is shown.")
    await e.tap(f".alink:text-is('{word}'):visible", f'the link "{word}"')
    e.success(f'The tab with the link "{word}" is open and the link has been tapped.')


async def sections(e: Expert) -> None:
    (word,) = e.quoted()
    visible = "w => [...document.querySelectorAll('.alink')].some(a => a.innerText == w && a.offsetParent)"
    for number in range(await e.count("h3")):
        await e.tap("h3", f"the header Section #{number + 1}", number)
        e.expect(f"Section #{number + 1} is open and shows its text; the other sections are closed.")
        if await e.js(visible, word):
            break
    await e.tap(f".alink:text-is('{word}'):visible", f'the link "{word}"')
    e.success(f'The open section shows the link "{word}", and the link has been tapped.')


async def search_engine(e: Expert) -> None:
    word = e.quoted()[0]
    rank = int(e.find(r"(\d+)(?:st|nd|rd|th)")[0])
    await e.fill("#search-text", word, "the search field")
    e.expect(f'The search field shows "{word}".')
    await e.tap("#search", "the Search button")
    e.expect("A list of three results, each with a title, an address and a text, and page numbers below it.")
    for page in range((rank - 1) // 3):
        await e.tap("#pagination li.next a, #pagination a:text-is('>')", "the > link to the next page of results")
        e.expect(f"Page {page + 2} of the results is shown, with three other results.")
    title = await e.js("n => document.querySelectorAll('#page-content a')[n].innerText", (rank - 1) % 3)
    await e.tap("#page-content a", f'the result "{title}"', (rank - 1) % 3)
    e.success(f'The page of results that holds "{title}" is shown and that result has been tapped.')


async def _open_mail(e: Expert, sender: str) -> None:
    await e.tap(f".email-thread:has(.email-sender:text-is('{sender}')) .email-subject", f"the email by {sender}")
    e.expect(f"The email by {sender} is open, with Reply and Forward below its text.")


async def mail_reply(e: Expert) -> None:
    (text,) = e.quoted()
    (sender,) = e.find(r"by ([\w-]+)")
    await _open_mail(e, sender)
    await e.tap(".email-reply:visible", "Reply")
    e.expect(f"A reply form addressed to {sender} with an empty text field.", "progress", "memory_persistence")
    await e.fill("#reply-text", text, "the reply's text field")
    e.expect(f'The reply\'s text field shows "{text}".')
    await e.tap("#send-reply", "the send icon")
    e.success(f'The reply to {sender} still shows "{text}" and the send icon has been tapped.', "memory_persistence")


async def mail_forward(e: Expert) -> None:
    names = await e.js("[...document.querySelectorAll('.email-thread .email-sender')].map(s => s.innerText)")
    sender = next(name for name in names if re.search(rf"\b{name}\b", e.goal))
    others = [word for word in re.findall(r"[A-Z][a-z]+(?:-[A-Z][a-z]+)?", e.goal) if word in await _people(e)]
    recipient = next(word for word in others if word != sender)
    await _open_mail(e, sender)
    await e.tap(".email-forward:visible", "Forward")
    e.expect("A forward form with an empty recipient field and the email below.", "progress", "memory_persistence")
    await e.fill(".forward-sender", recipient, "the recipient field")
    e.expect(f'The recipient field shows "{recipient}".')
    await e.tap("#send-forward", "the send icon")
    e.success(f'The recipient field still shows "{recipient}" and the send icon has been tapped.', "memory_persistence")


async def _people(e: Expert) -> list[str]:
    people: list[str] = await e.js("() => ui_utils.PEOPLE_NAMES")
    return people


async def mail_star(e: Expert) -> None:
    (sender,) = e.find(r"by ([\w-]+)")
    await _open_mail(e, sender)
    await e.tap("#email .email-actions .star:visible", "the star icon")
    e.success(f"The email by {sender} is open and its star icon is filled.")


async def social_some(e: Expert) -> None:
    amount, user = e.find(r"on (\d+) posts? by (@\w+)")
    (button,) = e.quoted()
    posts = f".media:has(.username:text-is('{user}')) .{button.lower()}"
    for number in range(int(amount)):
        await e.tap(posts, f"{button} on post {number + 1} by {user}", number)
        if number in (0, int(amount) - 1):
            e.expect(f"The {button} icon is coloured on {number + 1} post(s) by {user}.")
    await e.tap("#submitRow button", "the Submit button")
    e.success("The end of the list with the Submit button is shown, and Submit has been pressed.", "memory_persistence")


async def form_two(e: Expert) -> None:
    pattern = r'the (\d)\w\w radio button and enter the number "(-?\d+)" into the (\d)\w\w textbox'
    position, number, place = e.find(pattern)
    await e.tap("input[type=radio]", f"radio button {position}", int(position) - 1)
    e.expect(f"Radio button {position} of 3 is selected.")
    await e.fill("input[type=text]", number, f"text box {place}", int(place) - 1)
    e.expect(f'Text box {place} of 3 shows "{number}"; the other two are empty.', "progress", "memory_persistence")
    await e.tap("#subbtn", "the Submit button")
    e.success(f'Radio button {position} is selected, text box {place} shows "{number}", and Submit has been pressed.')


async def form_three(e: Expert) -> None:
    height, button = e.find(r'Choose (.*?) from the dropdown, then click the button labeled "(.*?)"')
    await e.tap(".selectric", "the dropdown")
    e.expect("The dropdown's list of heights is open.")
    await e.tap(f".selectric-items li:text-is('{height}')", f'the entry "{height}"')
    e.expect(f'The list is closed and the dropdown shows "{height}".')
    await e.tap(f"#{button.lower()}", f"the button {button}")
    e.success(f'The dropdown still shows "{height}" and {button} has been pressed.', "memory_persistence")


async def autocomplete(e: Expert) -> None:
    start = e.quoted()[0]
    end = e.quoted()[1] if len(e.quoted()) > 1 else ""
    await e.fill("#tags", start, "the Tags field")
    items = await e.js("[...document.querySelectorAll('ul.ui-autocomplete li')].map(i => i.innerText)")
    e.expect(f'Below the Tags field a list of suggestions that start with "{start}".')
    chosen = next(i for i, item in enumerate(items) if item.endswith(end))
    await e.tap("ul.ui-autocomplete li", f'the suggestion "{items[chosen]}"', chosen)
    e.expect(f'The list is closed and the Tags field shows "{items[chosen]}".')
    await e.tap("#subbtn", "the Submit button")
    e.success(f'The Tags field still shows "{items[chosen]}" and Submit has been pressed.', "memory_persistence")


async def movies(e: Expert) -> None:
    genre, director, year = e.find(r"for (.*?) movies directed by ([\w-]+) from year (\d+)")
    label = """i => { const field = document.querySelectorAll('#area input[type=text]')[i];
      for (let e = field.parentElement; e; e = e.parentElement) {
        const text = e.innerText.trim() || (e.previousElementSibling || {}).innerText || field.placeholder;
        if (text) return text.toLowerCase(); } }"""
    filled = []
    for index in range(3):
        text = await e.js(label, index)
        name = "Director" if "director" in text else "Year" if re.search("year|date", text) else "Genre"
        value = {"Director": director, "Year": year, "Genre": genre}[name]
        await e.fill("#area input[type=text]", value, f"the {name} field", index)
        filled.append(f'{name} "{value}"')
        types = ("progress",) if index == 0 else ("progress", "memory_persistence")
        e.expect(f"The form shows {', '.join(filled)}.", *types)
    await e.tap("#area button, #area .final, #area .ui-footer *, #area .submit-row *", "the button below the form")
    e.success("All three fields are filled in and the button below them has been pressed.")


async def read_table(e: Expert) -> None:
    filled = []
    for number in (1, 2):
        key = await e.js("n => document.querySelector('#ll' + n).dataset.key", number)
        rows = "[...document.querySelectorAll('#tab tr')].map(r => [r.cells[0].innerText, r.cells[1].innerText])"
        value = dict(await e.js(rows))[key]
        await e.fill(f"#tt{number}", value, f"the {key} field")
        filled.append(f'the {key} field "{value}"')
        e.expect(f"Below the table, {' and '.join(filled)} as the table says.")
    await e.tap("#subbtn", "the Submit button")
    e.success(f"Still {' and '.join(filled)}, and Submit has been pressed.", "memory_persistence")


async def phone_book(e: Expert) -> None:
    name, kind = e.find(r"Find ([\w-]+) in the contact book and click on their (phone|email|address)")
    page = 1
    while await e.js("document.querySelector('.name').innerText") != name:
        await e.tap("#pagination .next a", "the > link to the next contact")
        page += 1
    e.expect(f"The contact {name} is shown, page {page}.")
    await e.tap(f"a.{kind}", f"{name}'s {kind}")
    e.success(f"The contact {name} is shown and the {kind} has been tapped.")


async def tree(e: Expert) -> None:
    (word,) = e.quoted()
    path = await e.js(
        """w => { const item = [...document.querySelectorAll('#tree span')].find(s => s.textContent == w), path = [];
        for (let u = item.closest('ul'); u && u.id != 'tree'; u = u.parentElement.closest('ul'))
          path.unshift(u.parentElement.querySelector('span').textContent);
        return path; }""",
        word,
    )
    for folder in path:
        await e.tap(f"#tree li.expandable > span:text-is('{folder}'):visible", f'the folder "{folder}"')
        e.expect(f'The folder "{folder}" is open and shows what is in it.')
    await e.tap(f"#tree span:text-is('{word}'):visible", f'"{word}"')
    e.success(f'"{word}" is visible in the tree and has been tapped.')


async def find_word(e: Expert) -> None:
    position = int(e.find(r"(\d+)(?:st|nd|rd|th)")[0])
    words = re.findall(r"[\w']+", await e.js("document.querySelector('#area p').innerText"))
    word = words[position - 1]
    await e.fill("#answer-input", word, "the text field")
    e.expect(f'The text field shows "{word}", word {position} of the paragraph.')
    await e.tap("#subbtn", "the Submit button")
    e.success(f'The text field still shows "{word}" and Submit has been pressed.', "memory_persistence")


async def algebra(e: Expert) -> None:
    problem = (await e.js("document.querySelector('#math-problem').innerText")).replace("−", "-")
    x = next(x for x in range(-300, 300) if _holds(problem, x))
    await e.fill("#math-answer", str(x), "the answer field")
    e.expect(f'The answer field shows "{x}".')
    await e.tap("#subbtn", "the Submit button")
    e.success(f'The problem is still "{problem}", the answer field shows "{x}", and Submit has been pressed.')


def _holds(problem: str, x: int) -> bool:
    """Whether `x` solves an equation such as ``x + 7 = 5`` or ``3 - x = 12``."""
    tokens = re.findall(r"-?\d+|x|[+\-=]", problem.replace("- ", "-").replace("-x", "- x").replace(" ", ""))
    sides, sign = [0, 0], 1
    side = 0
    for token in tokens:
        if token == "=":
            side, sign = 1, 1
        elif token in "+-":
            sign = 1 if token == "+" else -1
        else:
            sides[side] += sign * (x if token == "x" else int(token))
            sign = 1
    return sides[0] == sides[1]


async def spinner(e: Expert) -> None:
    wanted = int(e.find(r"Select (-?\d+)")[0])
    name = "up" if wanted > 0 else "down"
    value = 0
    if abs(wanted) >= 4:
        await e.long_press(f".ui-spinner-{name}", f"the spinner's {name} arrow")  # it repeats while held
        value = int(await e.js("document.querySelector('#spinner').value"))
        e.expect(f"The spinner shows {value}.")
    for _ in range(abs(wanted - value)):
        await e.tap(f".ui-spinner-{name}", f"the spinner's {name} arrow")
    e.expect(f"The spinner shows {wanted}.")
    await e.tap("#subbtn", "the Submit button")
    e.success(f"The spinner still shows {wanted} and Submit has been pressed.", "memory_persistence")


async def _pick_date(e: Expert, month: int, day: int) -> None:
    """In an open jQuery UI calendar."""
    shown = (
        "[...document.querySelectorAll('.ui-datepicker-month')].map(m => new Date(m.innerText + ' 1 2016').getMonth())"
    )
    while (current := (await e.js(shown))[0] + 1) != month:
        way, name = ("prev", "previous") if current > month else ("next", "next")
        await e.tap(f".ui-datepicker-{way}", f"the calendar's arrow to the {name} month")
    await e.tap(f".ui-datepicker-calendar a:text-is('{day}')", f"day {day}")


async def date(e: Expert) -> None:
    month, day, year = (int(part) for part in e.find(r"(\d+)/(\d+)/(\d+)"))
    await e.tap("#datepicker", "the Date field")
    e.expect("A calendar is open below the Date field.")
    await _pick_date(e, month, day)
    chosen = f"{month:02}/{day:02}/{year}"
    e.expect(f'The calendar is closed and the Date field shows "{chosen}".')
    await e.tap("#subbtn", "the Submit button")
    e.success(f'The Date field still shows "{chosen}" and Submit has been pressed.', "memory_persistence")


async def typed_date(e: Expert) -> None:
    month, day, year = e.find(r"(\d+)/(\d+)/(\d+)")
    await e.tap("#tt", "the month in the date field", across=0.15)
    await e.type(month + day + year, "the date field")
    e.expect(f'The date field shows "{month}/{day}/{year}".')
    await e.tap("#subbtn", "the Submit button")
    e.success(f'The date field still shows "{month}/{day}/{year}" and Submit has been pressed.', "memory_persistence")


async def scroll_text(e: Expert) -> None:
    bottom = "t => t.scrollTop + t.clientHeight >= t.scrollHeight - 2"
    await e.scroll_inside("#text-area", "up", bottom, "reach the end of the text")
    word = re.findall(r"[\w']+", await e.js("document.querySelector('#text-area').value"))[-1]
    e.expect(f'The text area shows the end of its text; its last word is "{word}".')
    await e.fill("#answer-input", word, "the text field")
    e.expect(f'The text field shows "{word}" and the text area still its end.', "progress", "memory_persistence")
    await e.tap("#subbtn", "the Submit button")
    e.success(f'The text field shows "{word}" and Submit has been pressed.')


async def scroll_to_end(e: Expert) -> None:
    (end,) = e.find("to the (bottom|top)")
    done = {"bottom": "t => t.scrollTop + t.offsetHeight >= t.scrollHeight - 2", "top": "t => t.scrollTop == 0"}[end]
    await e.scroll_inside("#text-area", {"bottom": "up", "top": "down"}[end], done, f"reach the {end} of the text")
    e.expect(f"The text area shows the {end} of its text.")
    await e.tap("#subbtn", "the Submit button")
    e.success(f"The text area still shows the {end} of its text and Submit has been pressed.", "memory_persistence")


async def scroll_list(e: Expert) -> None:
    (name,) = e.find(r"Select ([^,]*) from the scroll list")
    await e.tap(f"#options option:text-is('{name}')", f'the entry "{name}"')
    e.expect(f'The entry "{name}" is visible in the list and highlighted.')
    await e.tap("#area button", "the Submit button")
    e.success(f'"{name}" is still highlighted, alone, and Submit has been pressed.', "memory_persistence")


_LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


async def tic_tac_toe(e: Expert) -> None:
    """Wins if it can, else blocks, else takes the centre, a corner, an edge."""
    while not (await e.episode.state())["done"]:
        board = await e.js("() => gameState")

        def completing(player: int, board: list[int] = board) -> list[int]:
            lines = [line for line in _LINES if sorted(board[i] * player for i in line) == [0, 1, 1]]
            return [i for line in lines for i in line if board[i] == 0]

        cell = [*completing(1), *completing(-1), *(i for i in (4, 0, 2, 6, 8, 1, 3, 5, 7) if board[i] == 0)][0]
        row, column = divmod(cell, 3)
        await e.tap(f"#ttt-{cell}", f"the cell in row {row + 1}, column {column + 1}")
        marks = (await e.js("() => gameState")).count(1)
        if marks <= 2:
            marks_o = (await e.js("() => gameState")).count(-1)
            types = ("progress",) if marks == 1 else ("progress", "memory_persistence")
            e.expect(f"The board shows {marks} X and {marks_o} O; no earlier mark has moved or gone.", *types)
    e.success("Three X stand in one row, column or diagonal.")


async def menu(e: Expert) -> None:
    (item,) = e.find(r'item labeled "(.*?)"')
    await e.tap("#open-menu", "the Menu button")
    e.expect("The menu is open: Save, Playback, Print..., Zoom In, Zoom Out.")
    if item in ("Prev", "Stop", "Play", "Next"):
        await e.tap("#menu > li:has(ul) > div", "Playback")
        e.expect("Beside Playback its submenu is open: Prev, Stop, Play, Next.", "progress", "memory_persistence")
    await e.tap(f"#menu li:not(:has(ul)) > div:text-is('{item}'):visible", f'the item "{item}"')
    e.success(f'The menu is still open after its item "{item}" has been tapped.')


@dataclass(frozen=True)
class Template:
    """The tasks made from one page.

    Attributes:
        page: file name in the package, without ``.html``.
        expert: acts and names milestones.
        category: what kind of use it is.
        app: what an agent would call the application.
        screen: the first screen in one sentence (GUI-CC's ``initial_state``).
        seeds: one task each.
    """

    page: str
    expert: Callable[[Expert], Awaitable[None]]
    category: str
    app: str
    screen: str
    seeds: tuple[int, ...]


_MAIL = "An inbox titled Primary with three emails; each shows sender, subject, a star and a trash icon."
_MOVIES = "An empty movie search form with the fields genre, director and year in some order, and one button."

TEMPLATES = (
    Template("login-user", login, "Forms", "Login", "An empty form: Username, Password, Login.", (0, 3)),
    Template("login-user-popup", login_popup, "Forms", "Login", "An empty form: Username, Password, OK.", (6,)),
    Template("enter-password", enter_password, "Forms", "Sign-up", "Two empty password fields and Submit.", (0,)),
    Template("enter-text", enter_text, "Forms", "Text form", "An empty text field and a Submit button.", (1,)),
    Template("click-checkboxes", checkboxes, "Forms", "Checklist", "A list of empty checkboxes and Submit.", (0,)),
    Template("form-sequence-2", form_two, "Forms", "Form", "Three radio buttons, three text boxes, Submit.", (0,)),
    Template("form-sequence-3", form_three, "Forms", "Form", "An empty dropdown; the buttons Yes, No, Maybe.", (3,)),
    Template("multi-layouts", movies, "Forms", "Movie search", _MOVIES, (0, 1)),
    Template("multi-orderings", movies, "Forms", "Movie search", _MOVIES, (1,)),
    Template("read-table-2", read_table, "Forms", "Table form", "A table of facts, two empty fields, Submit.", (0,)),
    Template("use-autocomplete", autocomplete, "Forms", "Tag field", "An empty field named Tags and Submit.", (0,)),
    Template("use-spinner", spinner, "Controls", "Spinner", "A spinner that shows 0 and a Submit button.", (0, 10)),
    Template("choose-date", date, "Controls", "Date picker", "An empty Date field and a Submit button.", (0,)),
    Template("enter-date", typed_date, "Controls", "Date field", "A date field mm/dd/yyyy and Submit.", (1,)),
    Template("button-delay", button_delay, "Controls", "Buttons", "Two buttons, ONE and TWO.", (0,)),
    Template("scroll-text", scroll_text, "Reading", "Reader", "A text area, a text field and Submit.", (1, 2)),
    Template("scroll-text-2", scroll_to_end, "Reading", "Reader", "A text area, in its middle, and Submit.", (2,)),
    Template("find-word", find_word, "Reading", "Reader", "A paragraph, a text field and Submit.", (1,)),
    Template("simple-algebra", algebra, "Reading", "Algebra", "An equation, a field for x and Submit.", (1,)),
    Template("click-tab-2-hard", tabs, "Navigation", "Tabs", "Numbered tabs; the first one's text is shown.", (1,)),
    Template("click-collapsible-2", sections, "Navigation", "Sections", "Closed sections, one below another.", (1,)),
    Template("navigate-tree", tree, "Navigation", "File tree", "A file tree with its folders closed.", (0,)),
    Template("click-menu-2", menu, "Navigation", "Menu", "A single button named Menu.", (1,)),
    Template("click-scroll-list", scroll_list, "Navigation", "List", "A list that can be scrolled, and Submit.", (6,)),
    Template("search-engine", search_engine, "Search", "Search engine", "An empty search field and Search.", (0, 1)),
    Template("phone-book", phone_book, "Search", "Phone book", "The first contact: phone, email, address.", (0, 3)),
    Template("email-inbox-reply", mail_reply, "Communication", "Email", _MAIL, (0,)),
    Template("email-inbox-forward-nl", mail_forward, "Communication", "Email", _MAIL, (0,)),
    Template("email-inbox-star-reply", mail_star, "Communication", "Email", _MAIL, (1,)),
    Template("social-media-some", social_some, "Communication", "Social media", "Posts with four icons each.", (1, 5)),
    Template("tic-tac-toe", tic_tac_toe, "Games", "Tic-tac-toe", "A 3 by 3 board, empty or with one O.", (6,)),
)
"""38 tasks over 31 pages, with seeds for which the expert needs 2 to 10 actions."""
