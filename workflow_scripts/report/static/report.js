// What the pages do: theme, list of episodes, stepping through one, comparing two. Text becomes text nodes, never markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const PAGE = 60; // episodes that are added to the list at a time

function stored(value) {
  try {
    if (value !== undefined) localStorage.setItem("guiloop-theme", value);
    return localStorage.getItem("guiloop-theme");
  } catch { return null; } // a browser that keeps nothing for pages from disk
}
if (stored()) document.documentElement.dataset.theme = stored();

function el(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value; else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function theme() {
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const show = () => { button.textContent = dark() ? "Light" : "Dark"; button.title = `Switch to ${dark() ? "light" : "dark"}`; };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    stored(document.documentElement.dataset.theme);
    show();
  });
  system.addEventListener("change", show);
  button.hidden = false;
  show();
}

const typing = (event) => event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey;

// --- list of episodes ------------------------------------------------------------------------------------------------
// data: rows [[label, folder, score from which a step is consistent]], tasks [[id, page, instruction, apps, page that compares]], metrics [name], outcomes [[name, failed]],
// episodes [[row, task, outcome, spark, score per metric in thousandths or null]]

function spark(letters, threshold) {
  const made = shape("svg", { class: "spark", viewBox: `0 0 ${Math.max(letters.length, 12) * 8} 22`, preserveAspectRatio: "xMinYMid meet", "aria-hidden": "true" });
  const paths = { ok: "", no: "", unknown: "" };
  [...letters].forEach((letter, step) => {
    const value = letter === "a" ? 10 : letter === "x" ? 0 : Number(letter);
    const high = Number.isNaN(value) ? 3 : 3 + 1.7 * value;
    const kind = letter === "-" ? "unknown" : value >= 10 * threshold ? "ok" : "no";
    paths[kind] += `M${step * 8} ${(21 - high).toFixed(1)}h6v${high.toFixed(1)}h-6z`;
  });
  for (const [kind, path] of Object.entries(paths)) if (path) made.append(shape("path", { class: kind, d: path }));
  return made;
}

function episodes(data) {
  const list = document.getElementById("episodes"), more = document.getElementById("more");
  const count = document.getElementById("count"), form = document.getElementById("filters");
  const fields = form.elements;
  let found = [], shown = 0;
  const fill = (select, first, names) => select && select.append(...first, ...names.map(([value, text]) => el("option", { value, textContent: text })));
  const all = (text) => [el("option", { value: "", textContent: text })];
  fill(fields.row, all("all"), data.rows.map(([label], number) => [number, label]));
  const failed = data.outcomes.some(([, bad]) => bad);
  fill(fields.outcome, all("any"), [...(failed ? [["failed", "any model failure"], ["complete", "no failure"]] : []), ...data.outcomes.map(([name], number) => [number, name.replaceAll("_", " ")])]);
  const apps = [...new Set(data.tasks.flatMap(([, , , names]) => names))].sort();
  fill(fields.app, all(apps.length ? "all" : "none named"), apps.map((app) => [app, app]));
  fields.app.disabled = !apps.length;
  fill(fields.metric, data.metrics.length ? [] : all("none"), data.metrics.map((name, number) => [number, name]));
  fields.metric.disabled = !data.metrics.length;

  const score = (episode) => data.metrics.length ? episode[4][Number(fields.metric.value)] : null;
  function keep(episode) {
    const [row, task, outcome] = episode;
    const [id, , instruction, names] = data.tasks[task];
    const value = score(episode);
    const words = fields.text.value.trim().toLowerCase();
    if (fields.row && fields.row.value !== "" && row !== Number(fields.row.value)) return false;
    if (fields.outcome.value === "failed" ? !data.outcomes[outcome][1] : fields.outcome.value === "complete" ? data.outcomes[outcome][1]
      : fields.outcome.value !== "" && outcome !== Number(fields.outcome.value)) return false;
    if (fields.app.value && !names.includes(fields.app.value)) return false;
    if (words && !`${id} ${instruction}`.toLowerCase().includes(words)) return false;
    if (fields.low.value !== "" && !(value !== null && value >= fields.low.value * 10)) return false;
    return fields.high.value === "" || (value !== null && value <= fields.high.value * 10);
  }
  function line(episode) {
    const [row, task, outcome, letters] = episode;
    const [id, page, instruction, , compared] = data.tasks[task];
    const [name, bad] = data.outcomes[outcome];
    const value = score(episode);
    const course = el("span", { className: "course" }, spark(letters, data.rows[row][2]));
    const how = el("span", { className: bad ? "how bad" : "how", textContent: name.replaceAll("_", " ") });
    const who = fields.row ? [el("span", { className: "who", textContent: data.rows[row][0] })] : [];
    return el("li", {},
      el("span", { className: "task" }, el("a", { href: data.rows[row][1] + page, textContent: id })),
      el("span", { className: "what", title: instruction }, el("a", { href: compared, textContent: instruction })), ...who, course, how,
      el("span", { className: "score", textContent: value === null ? "–" : (value / 10).toFixed(1) }));
  }
  function add() {
    list.append(...found.slice(shown, shown + PAGE).map(line));
    shown = Math.min(shown + PAGE, found.length);
    more.hidden = shown >= found.length;
    more.textContent = `Show ${Math.min(PAGE, found.length - shown)} more`;
  }
  function update() {
    found = data.episodes.filter(keep);
    const order = fields.order.value;
    if (order !== "given") {
      const sign = order === "up" ? 1 : -1;
      const of = (episode) => score(episode) ?? sign * Infinity;
      found.sort((a, b) => (of(a) === of(b) ? 0 : sign * (of(a) - of(b))));
    }
    list.replaceChildren();
    shown = 0;
    add();
    const total = data.episodes.length;
    count.textContent = found.length === total ? `${total} episodes` : `${found.length} of ${total} episodes`;
    if (!found.length) list.append(el("li", {}, el("span", { className: "empty", textContent: "No episode fits these filters." })));
  }
  form.addEventListener("input", update);
  form.addEventListener("reset", () => setTimeout(update));
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", add);
  update();
}

// --- one episode -----------------------------------------------------------------------------------------------------

function episode() {
  const steps = [...document.querySelectorAll(".step")], links = [...document.querySelectorAll(".strip a[data-step]")];
  if (!steps.length) return;
  let current = 0;
  function show(number, scroll) {
    current = Math.min(Math.max(number, 0), steps.length - 1);
    steps.forEach((step, k) => { step.hidden = k !== current; });
    links.forEach((link, k) => { if (k === current) link.setAttribute("aria-current", "step"); else link.removeAttribute("aria-current"); });
    if (scroll) {
      const strip = document.querySelector(".strip"), link = links[current];
      strip.scrollLeft = link.offsetLeft - strip.offsetLeft - (strip.clientWidth - link.clientWidth) / 2;
    }
  }
  function go(number) {
    show(number, true);
    history.replaceState(null, "", `#step-${current}`);
  }
  links.forEach((link, k) => link.addEventListener("click", (event) => { event.preventDefault(); go(k); }));
  document.addEventListener("keydown", (event) => {
    if (typing(event)) return;
    const to = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: steps.length - 1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      go(to);
      if (document.activeElement?.dataset.step) links[current].focus();
    } else if (event.key === "d" || event.key === "D") {
      document.body.classList.toggle("overlaid");
    }
  });
  // The difference laid over the prediction: the true screen in a copy of its own, made when it is first asked for.
  for (const step of steps) {
    const stack = step.querySelector(".stack"), pane = step.querySelector(".predicted .screen");
    if (stack && pane) {
      const over = stack.cloneNode(true);
      over.classList.add("over");
      pane.append(over);
    }
  }
  const fromHash = () => { const found = /^#step-(\d+)$/.exec(location.hash); return found ? Number(found[1]) : 0; };
  addEventListener("hashchange", () => show(fromHash(), true));
  document.getElementById("keys").hidden = false;
  show(fromHash(), true);
}

// --- two rows on one task --------------------------------------------------------------------------------------------
// data: width, height, shared (one true strip for all), rows [{label, page, base, frames, true, drawings, acts, course, end}]

function overlay(drawing, width, height) {
  if (drawing.caption) return el("span", { className: "typed" }, el("b", { textContent: drawing.caption }), ` ${drawing.text}`);
  const layer = (name, stroke) => {
    const group = shape("g", { class: name, "stroke-width": stroke });
    for (const [cx, cy, r] of drawing.circles) group.append(shape("circle", { cx, cy, r }));
    if (drawing.path) group.append(shape("path", { d: drawing.path }));
    return group;
  };
  return shape("svg", { class: "mark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "xMinYMin meet", "aria-hidden": "true" },
    layer("halo", 2 * drawing.stroke), layer("ink", drawing.stroke));
}

function compare(data) {
  const form = document.getElementById("compare"), matrix = document.getElementById("matrix"), fields = form.elements;
  const { width, height, rows } = data;
  let current = 0;
  matrix.style.setProperty("--tile", `min(${Math.round(Math.min(15, 20 * Math.min(1, width / height)))}rem, 52vw)`);
  const option = (value, text) => el("option", { value, textContent: text });
  fields.a.append(...rows.map((row, k) => option(k, row.label)));
  fields.b.append(option("none", "nothing"), option("all", "all other rows"), ...rows.map((row, k) => option(k, row.label)));
  const wanted = new URLSearchParams(location.hash.slice(1));
  const named = (key) => rows.findIndex((row) => row.label === wanted.get(key));
  fields.a.value = Math.max(named("a"), 0);
  fields.b.value = named("b") >= 0 ? named("b") : ["all", "none"].includes(wanted.get("b")) ? wanted.get("b") : rows.length > 1 ? 1 : "none";

  // loading must be lazy before there is a source
  const image = (src, alt) => el("img", { loading: "lazy", decoding: "async", width, height, alt, src });
  const screen = (src, alt, drawing) => {
    const made = el("a", { className: "screen", href: src, tabIndex: -1 }, image(src, alt));
    if (drawing) made.append(overlay(drawing, width, height));
    return made;
  };
  function strip(row, columns) {
    const line = el("tr", {}, el("th", { scope: "row" }, el("a", { href: row.page, textContent: row.label }), el("small", { textContent: row.end })));
    for (let k = 0; k < columns; k++) {
      const cell = el("td");
      if (row.frames[k]) {
        cell.append(screen(row.base + row.frames[k], `${row.label}: screen ${k}`, row.drawings[k]));
        const words = el("p");
        const value = k ? row.course[k - 1] : null;
        if (value !== null && value !== undefined) words.append(el("b", { textContent: (100 * value).toFixed(0), className: value < row.threshold ? "bad" : "good" }), " ");
        if (row.acts[k]) words.append(row.acts[k]);
        cell.append(words);
      } else if (k === row.frames.length && row.failed) {
        cell.className = "gone";
        cell.append(el("span", { className: "bad", textContent: row.failed }));
      }
      line.append(cell);
    }
    return line;
  }
  function truth(row, columns, label) {
    const line = el("tr", {}, el("th", { scope: "row", textContent: label }));
    for (let k = 0; k < columns; k++) line.append(row.true[k] ? el("td", {}, screen(row.true[k], `${label}: screen ${k}`)) : el("td"));
    return line;
  }
  function difference(row, columns) {
    const line = el("tr", {}, el("th", { scope: "row", textContent: "difference" }));
    for (let k = 0; k < columns; k++) {
      const both = k && row.frames[k] && row.true[k];
      line.append(both ? el("td", {}, el("span", { className: "screen stack" }, image(row.true[k], `Difference at screen ${k}`), image(row.base + row.frames[k], ""))) : el("td"));
    }
    return line;
  }
  function mark(scroll) {
    matrix.querySelectorAll(".current").forEach((cell) => cell.classList.remove("current"));
    const head = matrix.querySelectorAll("thead th")[current + 1];
    if (!head) return;
    head.classList.add("current");
    if (scroll) matrix.scrollLeft = head.offsetLeft - matrix.querySelector("tbody th").offsetWidth - 8;
  }
  function draw() {
    const b = fields.b.value, a = rows[fields.a.value];
    const chosen = [a, ...(b === "none" ? [] : b === "all" ? rows.filter((row) => row !== a) : [rows[b]])];
    const columns = Math.max(1, ...chosen.map((row) => Math.max(row.frames.length, row.true.length)));
    const head = el("tr", {}, el("th"));
    for (let k = 0; k < columns; k++) head.append(el("th", { scope: "col", textContent: `screen ${k}` }));
    const body = el("tbody");
    if (data.shared && fields.true.checked) {
      const fullest = chosen.reduce((best, row) => (row.true.length > best.true.length ? row : best));
      if (fullest.true.length) body.append(truth(fullest, columns, "true"));
    }
    for (const row of chosen) {
      body.append(strip(row, columns));
      if (!data.shared && fields.true.checked && row.true.length) body.append(truth(row, columns, "true"));
      if (fields.difference.checked && row.true.length) body.append(difference(row, columns));
    }
    current = Math.min(current, columns - 1);
    matrix.replaceChildren(el("table", {}, el("thead", {}, head), body));
    mark(false);
  }
  form.addEventListener("input", () => {
    const b = fields.b.value;
    history.replaceState(null, "", `#${new URLSearchParams({ a: rows[fields.a.value].label, b: rows[b] ? rows[b].label : b })}`);
    draw();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", (event) => {
    if (typing(event)) return;
    const last = matrix.querySelectorAll("thead th").length - 2;
    const to = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    current = Math.min(Math.max(to, 0), last);
    mark(true);
  });
  draw();
}

document.addEventListener("DOMContentLoaded", () => {
  theme();
  const block = document.getElementById("data");
  const data = block && JSON.parse(block.textContent);
  if (document.body.classList.contains("episode")) episode();
  else if (document.body.classList.contains("task")) compare(data);
  else if (data) episodes(data);
});
