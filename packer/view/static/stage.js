// One picture that is zoomed and moved, with its drawing, and its original beside it.
import { drawn, element, isDrawn, partsShown, shapes, svg, tags, textsOf } from "./draw.js";

const MOST = 64; // times
const GAP = 0.02; // between pictures, in sides of one
const button = (text, label, keys) => element("button", { type: "button", "aria-label": label, title: `${label}  ${keys}` }, text);

export class Stage {
  // `hovered(n)` and `picked(n)`: the pointer is over an object, or has pressed it; null for none
  constructor(root, { hovered, picked }) {
    Object.assign(this, { root, hovered, picked, facts: null, chosen: null, original: null, split: 0.5, scale: 1, x: 0, y: 0 });
    this.view = element("div", { class: "view" });
    this.layer = element("div", { class: "layer" });
    this.over = svg("svg", { class: "over", "aria-hidden": "true" });
    this.divider = element("div", { class: "divider", hidden: "" }, element("span", {}, "original"), element("span", {}, "packed"));
    this.view.append(this.layer, this.over, this.divider);
    this.readout = element("output", { title: "1 pixel of the image : pixels of the screen" });
    this.note = element("span", { class: "stage-note", role: "status" });
    this.slider = element("input", { type: "range", min: 0, max: 1000, value: 500, "aria-label": "original to packed", hidden: "" });
    const out = button("−", "zoom out", "-"), into = button("+", "zoom in", "+"), fit = button("fit", "fit", "0"), exact = button("1:1", "one pixel of the image for one of the screen", "double click");
    this.compare = element("button", { type: "button", "aria-pressed": "false", title: "original beside packed  o" }, "original");
    this.tools = element("div", { class: "tools", role: "group", "aria-label": "zoom" }, out, this.readout, into, fit, exact, this.compare, this.slider, this.note);
    out.addEventListener("click", () => this.zoom(1 / 1.5));
    into.addEventListener("click", () => this.zoom(1.5));
    fit.addEventListener("click", () => this.fit());
    exact.addEventListener("click", () => this.zoom(1 / devicePixelRatio / this.scale));
    this.slider.addEventListener("input", () => { this.split = Number(this.slider.value) / 1000; this.place(); });
    new ResizeObserver(() => { if (this.fitted) this.fit(); else this.schedule(); }).observe(this.view);
    this.listen();
  }

  show(facts) {
    this.facts = facts; this.chosen = null; this.original = null; this.slider.hidden = this.divider.hidden = true;
    const image = element("img", { src: facts.picture, alt: "", draggable: "false" });
    this.beside = partsShown(facts, "beside");
    this.packed = [image, ...this.beside.map(({ name, picture: src }) => element("img", { src, alt: name, draggable: "false" }))];
    this.layer.replaceChildren(...this.packed);
    for (const { style } of this.packed) { style.width = `${facts.width}px`; style.height = `${facts.height}px`; }
    const all = textsOf(facts), several = new Set(all.map(([name]) => name)).size > 1;
    const texts = all.map(([name, text]) => element("p", {}, ...(several ? [element("small", {}, `${name}: `)] : []), text));
    this.root.replaceChildren(this.view, ...(texts.length ? [element("div", { class: "texts" }, ...texts)] : []), this.tools);
    this.note.textContent = "";
    this.fit();
  }

  // The same record in another look: what is zoomed stays so.
  repaint(facts) {
    this.facts = facts;
    this.packed[0].src = facts.picture;
    this.schedule();
  }

  // `kept`: an object that was chosen to stay, as another one is pointed at
  choose(n, kept = null) { if (n !== this.chosen || kept !== this.kept) { this.chosen = n; this.kept = kept; this.schedule(); } }

  showOriginal(facts) {
    this.original = facts;
    const shown = facts !== null;
    this.slider.hidden = this.divider.hidden = !shown;
    this.layer.replaceChildren(...(shown ? [this.packed[0]] : this.packed));
    this.packed[0].style.clipPath = "";
    if (shown) {
      this.originalImage = element("img", { class: "original", src: facts.picture, alt: "", draggable: "false" });
      const [x, y, width, height] = facts.at, style = this.originalImage.style;
      style.left = `${x}px`; style.top = `${y}px`; style.width = `${width}px`; style.height = `${height}px`;
      this.layer.append(this.originalImage);
    }
    this.fit();
  }

  // where the nth picture is, in pixels of the packed image: beside the one before it or below, whichever shows them larger
  placeOf(n) {
    const { width, height } = this.facts, step = 1 + GAP, wide = this.view.clientWidth / width, high = this.view.clientHeight / height;
    const all = 1 + step * this.beside.length;
    return Math.min(wide / all, high) >= Math.min(wide, high / all) ? [n * step * width, 0] : [0, n * step * height];
  }

  // what is fitted into the window, in pixels of the packed image
  bounds() {
    const { width, height } = this.facts;
    if (!this.original) { const [x, y] = this.placeOf(this.beside.length); return [0, 0, x + width, y + height]; }
    const [x, y, w, h] = this.original.at;
    return [Math.min(0, x), Math.min(0, y), Math.max(width, x + w), Math.max(height, y + h)];
  }

  fit() {
    const wide = this.view.clientWidth, high = this.view.clientHeight;
    if (!this.facts || !wide) return;
    const [x1, y1, x2, y2] = this.bounds(), edge = Math.min(14, wide / 30);
    this.scale = Math.min((wide - 2 * edge) / (x2 - x1), (high - 2 * edge) / (y2 - y1));
    this.x = (wide - (x1 + x2) * this.scale) / 2; this.y = (high - (y1 + y2) * this.scale) / 2;
    this.smallest = Math.min(this.scale, 1) / 2; this.fitted = true;
    this.schedule();
  }

  zoom(factor, x = this.view.clientWidth / 2, y = this.view.clientHeight / 2) {
    const scale = Math.max(this.smallest, Math.min(MOST, this.scale * factor));
    this.x = x - ((x - this.x) * scale) / this.scale; this.y = y - ((y - this.y) * scale) / this.scale;
    this.scale = scale; this.fitted = false;
    this.schedule();
  }

  zoomTo(box) {
    const wide = this.view.clientWidth, high = this.view.clientHeight, [x1, y1, x2, y2] = box;
    const scale = Math.min((0.6 * wide) / Math.max(1, x2 - x1), (0.6 * high) / Math.max(1, y2 - y1), MOST / 4);
    this.scale = Math.max(this.smallest, scale); this.fitted = false;
    this.x = wide / 2 - ((x1 + x2) / 2) * this.scale; this.y = high / 2 - ((y1 + y2) / 2) * this.scale;
    this.schedule();
  }

  // some of the image stays in sight
  pan(dx, dy) {
    const [x1, y1, x2, y2] = this.bounds(), keep = 40, { scale } = this;
    this.x = Math.max(keep - x2 * scale, Math.min(this.view.clientWidth - keep - x1 * scale, this.x + dx));
    this.y = Math.max(keep - y2 * scale, Math.min(this.view.clientHeight - keep - y1 * scale, this.y + dy));
    this.fitted = false;
    this.schedule();
  }

  key(key) {
    if (key === "+" || key === "=") this.zoom(1.5);
    else if (key === "-") this.zoom(1 / 1.5);
    else if (key === "0") this.fit();
    else return false;
    return true;
  }

  schedule() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; if (this.facts) this.place(); });
  }

  place() {
    const { facts, scale, x, y, chosen, kept } = this, room = [this.view.clientWidth, this.view.clientHeight];
    this.layer.style.transform = `matrix(${scale}, 0, 0, ${scale}, ${x}, ${y})`;
    this.layer.classList.toggle("pixels", scale * devicePixelRatio >= 2.5);
    if (this.original) {
      const line = this.split * room[0], [left, , width] = this.original.at, at = (line - x) / scale;
      this.divider.style.transform = `translateX(${line}px)`;
      this.packed[0].style.clipPath = `inset(0 0 0 ${Math.max(0, Math.min(facts.width, at))}px)`;
      this.originalImage.style.clipPath = `inset(0 ${Math.max(0, Math.min(width, left + width - at))}px 0 0)`;
    }
    const lines = shapes(facts, { scale, chosen, kept, width: 2.2 });
    lines.setAttribute("transform", `matrix(${scale} 0 0 ${scale} ${x} ${y})`);
    const [names, left] = tags(facts, { scale, at: [x, y], room, chosen, numbers: true });
    const besides = this.original ? [] : this.beside.map(({ name }, n) => {
      const [left, top] = this.placeOf(n + 1), { style } = this.packed[n + 1];
      style.left = `${left}px`; style.top = `${top}px`;
      return Object.assign(svg("text", { class: "number", x: left * scale + x + 6, y: (top + facts.height) * scale + y - 7, "font-size": 13 }), { textContent: name });
    });
    this.over.replaceChildren(lines, names, ...besides);
    this.readout.textContent = `${Number((scale * devicePixelRatio * 100).toPrecision(3))} %`;
    this.readout.dataset.left = left;
    if (!this.said) this.note.textContent = left ? `${left} more ${left === 1 ? "name" : "names"}: zoom in` : "";
  }

  say(text) { this.said = text; this.note.textContent = text; }

  // the smallest object at a point of the window
  objectAt(px, py) {
    const x = (px - this.x) / this.scale, y = (py - this.y) / this.scale, slack = 3 / this.scale;
    let found = null, smallest = Infinity;
    (this.facts?.boxes ?? []).forEach((box, n) => {
      if (box.includes(null) || !isDrawn(this.facts, n) || (drawn.focus.size && !drawn.focus.has(this.facts.box_labels?.[n]))) return;
      const area = (box[2] - box[0]) * (box[3] - box[1]);
      if (x >= box[0] - slack && x <= box[2] + slack && y >= box[1] - slack && y <= box[3] + slack && area < smallest) { found = n; smallest = area; }
    });
    return found;
  }

  listen() {
    const held = new Map();
    let moved = 0, splitting = false;
    const at = (event) => { const frame = this.view.getBoundingClientRect(); return [event.clientX - frame.left, event.clientY - frame.top]; };
    this.view.addEventListener("wheel", (event) => {
      if (!this.facts) return;
      event.preventDefault();
      const lines = event.deltaMode === 1 ? 33 : 1; // Firefox counts lines
      this.zoom(Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.01 : 0.0018)), ...at(event));
    }, { passive: false });
    this.view.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.view.setPointerCapture(event.pointerId);
      held.set(event.pointerId, at(event));
      moved = 0;
      splitting = this.original !== null && held.size === 1 && Math.abs(at(event)[0] - this.split * this.view.clientWidth) < 14;
    });
    this.view.addEventListener("pointermove", (event) => {
      const now = at(event), before = held.get(event.pointerId);
      if (!before) { this.hovered(this.objectAt(...now)); return; }
      moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
      if (splitting) {
        this.split = Math.max(0, Math.min(1, now[0] / this.view.clientWidth));
        this.slider.value = Math.round(this.split * 1000);
        this.schedule();
      } else if (held.size === 1) this.pan(now[0] - before[0], now[1] - before[1]);
      else {
        const [other] = [...held].filter(([id]) => id !== event.pointerId).map(([, point]) => point);
        const spread = (point) => Math.max(10, Math.hypot(point[0] - other[0], point[1] - other[1]));
        this.pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
        this.zoom(spread(now) / spread(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
      }
      held.set(event.pointerId, now);
    });
    const end = (event) => {
      if (held.delete(event.pointerId) && event.type === "pointerup" && moved < 5 && !held.size && !splitting) this.picked(this.objectAt(...at(event)));
    };
    this.view.addEventListener("pointerup", end);
    this.view.addEventListener("pointercancel", end);
    this.view.addEventListener("pointerleave", (event) => { if (!held.has(event.pointerId)) this.hovered(null); });
    this.view.addEventListener("dblclick", (event) => {
      const exact = 1 / devicePixelRatio;
      if (Math.abs(this.scale / exact - 1) < 0.01) this.fit(); else this.zoom(exact / this.scale, ...at(event));
    });
  }
}
