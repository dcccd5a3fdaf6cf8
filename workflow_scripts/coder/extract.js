// An expression whose value is {read, hide}. It runs in an isolated world after the page has loaded with its scripts off.
// read(limits): words with their rectangles, painted boxes and the page's height, in CSS pixels of the document.
// hide(): makes the text that read() listed transparent, so that a second screenshot shows which pixels were text.
(() => {
  // Names of forms and inputs shadow properties of `document` and of forms in isolated worlds too: hence the prototypes.
  const getter = (p, n) => { const g = Object.getOwnPropertyDescriptor(p, n).get; return o => g.call(o); };
  const method = (p, n) => { const f = p[n]; return (o, ...a) => f.apply(o, a); };
  const D = Document.prototype, E = Element.prototype;
  const rootOf = getter(D, 'documentElement'), bodyOf = getter(D, 'body'), every = method(D, 'getElementsByTagName');
  const animations = method(D, 'getAnimations'), walk = method(D, 'createTreeWalker'), make = method(D, 'createElement');
  const at = method(D, 'elementFromPoint'), rectOf = method(E, 'getBoundingClientRect'), rectsOf = method(E, 'getClientRects');
  const tagOf = getter(E, 'tagName'), check = method(E, 'checkVisibility'), contains = method(Node.prototype, 'contains');
  const parentOf = getter(Node.prototype, 'parentElement');
  const htmlStyle = getter(HTMLElement.prototype, 'style'), svgStyle = getter(SVGElement.prototype, 'style');
  const set = (e, k, v) => (e instanceof HTMLElement ? htmlStyle(e) : e instanceof SVGElement ? svgStyle(e) : null)?.setProperty(k, v, 'important');

  const WORD = /[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\s\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+/g;
  const NO_TEXT = /^(SCRIPT|STYLE|NOSCRIPT|TEMPLATE|TITLE|TEXTAREA|OPTION|HEAD)$/i;
  const PAINTED = /^(IMG|SVG|CANVAS|VIDEO|INPUT|SELECT|TEXTAREA|BUTTON|PROGRESS|METER|IFRAME|OBJECT|EMBED)$/i;
  const clear = c => c === 'transparent' || /^rgba\(.*, 0\)$/.test(c);
  const owners = new Set();

  // Animations end before anything is read: what a page shows only now and then is not what it shows.
  const still = () => { for (const a of animations(document)) a.cancel(); };

  function valueOf(e, tag) {
    if (tag === 'SELECT') return (e.selectedOptions[0] || {}).text || '';
    if (tag === 'TEXTAREA') return e.value || e.placeholder || '';
    if (/^(checkbox|radio|hidden|range|color|file|image)$/.test(e.type)) return '';
    return e.type === 'password' && e.value ? '•'.repeat(e.value.length) : e.value || e.placeholder || '';
  }

  // Where words lie on one another: 0 for those with something opaque between them and the reader. Hit tests are slow
  // (a second each in a line of thousands of elements), so only such words are tested.
  function hitTest(words, owner, sx, sy) {
    const order = words.map((_, i) => i).sort((i, j) => words[i][2] - words[j][2]), crossed = new Set();
    for (let a = 0; a < order.length; a++) {
      const [, x, y, w, h] = words[order[a]];
      for (let b = a + 1; b < order.length; b++) {
        const [, x2, y2, w2, h2] = words[order[b]];
        if (y2 >= y + h) break;
        if (x2 + 1 < x + w && x + 1 < x2 + w2 && y2 + 0.25 * h2 < y + 0.75 * h && y + 0.25 * h < y2 + 0.75 * h2) crossed.add(order[a]).add(order[b]);
      }
    }
    const opaque = e => { const cs = getComputedStyle(e); return cs.backgroundImage !== 'none' || !/^(transparent|rgba\()/.test(cs.backgroundColor); };
    for (const i of crossed) {
      const [, x, y, w, h] = words[i];
      let e = at(document, x - sx + w / 2, y - sy + h / 2);         // null below the fold: unknown
      if (!e || contains(owner[i], e)) continue;
      for (; e && !contains(e, owner[i]); e = parentOf(e)) if (opaque(e)) { words[i][5] = 0; break; }
    }
  }

  function read(limits) {
    still();
    const root = rootOf(document), body = bodyOf(document) || root;
    const all = Array.prototype.slice.call(every(document, '*'), 0, limits.elements);
    // The hit test below must not be blinded by a cover that lets clicks through.
    for (const e of all) set(e, 'pointer-events', 'auto');
    const sx = scrollX, sy = scrollY, width = innerWidth, words = [], holder = [], boxes = [];
    const pageHeight = Math.max(root.scrollHeight, body.scrollHeight), height = Math.min(pageHeight, limits.height);
    const inside = r => r.width >= 1 && r.height >= 1 && r.right + sx > 0 && r.bottom + sy > 0 && r.left + sx < width && r.top + sy < height;
    const shown = e => check(e, {opacityProperty: true, visibilityProperty: true});
    const opaque = e => { const cs = getComputedStyle(e); return cs.backgroundImage !== 'none' || !/^(transparent|rgba\()/.test(cs.backgroundColor); };
    const push = (text, r, e) => { words.push([text, r.left + sx, r.top + sy, r.width, r.height, 1]); holder.push(e); owners.add(e); };

    const walker = walk(document, body, NodeFilter.SHOW_TEXT), range = new Range();
    for (let n; words.length < limits.words && (n = walker.nextNode());) {
      const e = parentOf(n);
      if (!e || !/\S/.test(n.data) || NO_TEXT.test(tagOf(e)) || !shown(e)) continue;
      for (const m of n.data.matchAll(WORD)) {
        range.setStart(n, m.index); range.setEnd(n, m.index + m[0].length);
        const r = range.getBoundingClientRect();
        if (inside(r)) push(m[0], r, e);
        if (words.length >= limits.words) break;
      }
    }
    const pen = make(document, 'canvas').getContext('2d');
    for (const e of all) {
      if (e === root || e === body) continue;
      const rect = rectOf(e);
      if (!inside(rect) || !shown(e)) continue;
      const cs = getComputedStyle(e), tag = tagOf(e).toUpperCase(), px = k => parseFloat(cs[k]) || 0;
      if (/^(INPUT|TEXTAREA|SELECT)$/.test(tag) && pen) {
        // A control's text has no ranges: its first line is laid out by the font's measure.
        pen.font = `${cs.fontWeight} ${cs.fontSize} ${cs.fontFamily}`;
        const line = Math.min(rect.height, 1.2 * px('fontSize')), space = pen.measureText(' ').width;
        let x = rect.left + px('paddingLeft') + px('borderLeftWidth');
        const y = tag === 'TEXTAREA' ? rect.top + px('paddingTop') + px('borderTopWidth') : rect.top + (rect.height - line) / 2;
        for (const m of valueOf(e, tag).split('\n')[0].matchAll(WORD)) {
          const w = pen.measureText(m[0]).width;
          if (x + w > rect.right || words.length >= limits.words) break;
          push(m[0], new DOMRect(x, y, w, line), e); x += w + space;
        }
      }
      if (boxes.length >= limits.boxes) continue;
      const [t, r, b, l] = ['Top', 'Right', 'Bottom', 'Left'].map(s => (clear(cs[`border${s}Color`]) ? 0 : px(`border${s}Width`)));
      const painted = !clear(cs.backgroundColor) || cs.backgroundImage !== 'none' || cs.boxShadow !== 'none' || PAINTED.test(tag);
      if (painted || (t && r && b && l)) {
        for (const q of cs.display === 'inline' ? rectsOf(e) : [rect]) boxes.push([q.left + sx, q.top + sy, q.width, q.height, Math.max(t, r, b, l)]);
        continue;
      }
      if (t) boxes.push([rect.left + sx, rect.top + sy, rect.width, t, 0]);
      if (r) boxes.push([rect.right + sx - r, rect.top + sy, r, rect.height, 0]);
      if (b) boxes.push([rect.left + sx, rect.bottom + sy - b, rect.width, b, 0]);
      if (l) boxes.push([rect.left + sx, rect.top + sy, l, rect.height, 0]);
    }
    hitTest(words, holder, sx, sy);
    return {words, boxes, pageHeight, pictureHeight: height};
  }

  function hide() {
    // An inline !important declaration beats every author rule. The fill colour alone: `color` would also repaint
    // backgrounds and borders made of currentColor, and text hidden on them would pass for visible.
    for (const e of owners) {
      for (const k of ['-webkit-text-fill-color', '-webkit-text-stroke-color', 'text-decoration-color']) set(e, k, 'transparent');
      set(e, 'text-shadow', 'none'); set(e, 'transition', 'none');
      if (e instanceof SVGElement) set(e, 'fill', 'transparent');
    }
    still();
  }
  return {read, hide};
})()
