// One record large, with all its fields and where it came from.
import { dot, drawn, element, nameOf, picture } from "./draw.js";
import { legend, ofBoxes, ofOverlay } from "./legend.js";
import { predictedRows } from "./predicted.js";
import { ask } from "./server.js";
import { similarTo } from "./similar.js";
import { get } from "./state.js";
import { Stage } from "./stage.js";
import { Levels, windowsAsked } from "./windows.js";

const $ = (id) => document.getElementById(id);

export class Detail {
  constructor() {
    this.dialog = $("detail"); this.wish = 0; this.step = null; this.pinned = null; this.comparing = false; this.rows = []; this.legends = [];
    this.levels = new Levels();
    this.stage = new Stage($("large"), { hovered: (n) => this.light(n, true), picked: (n) => this.pin(n === this.pinned ? null : n, true) });
    this.stage.compare.addEventListener("click", () => { this.comparing = !this.comparing; this.compare(); });
    $("close").addEventListener("click", () => this.close());
    $("before").addEventListener("click", () => this.step?.(-1));
    $("after").addEventListener("click", () => this.step?.(1));
    this.dialog.addEventListener("click", (event) => { if (event.target === this.dialog) this.close(); });
  }

  // Draw the record again, as other classes or overlays are drawn.
  redraw() { for (const one of this.legends) one.update(); this.stage.schedule(); }

  get isOpen() { return this.dialog.open; }
  close() { this.wish += 1; this.dialog.close(); }

  // `step`: called with -1 or 1 for the record before or after; null where there is none. `object`: the number of a box
  async show(record, step, object = -1) {
    const wish = (this.wish += 1);
    this.step = step;
    $("before").hidden = $("after").hidden = !step;
    if (!this.dialog.open) { $("large").replaceChildren(); $("fields").replaceChildren(); $("detail-key").textContent = ""; this.dialog.showModal(); this.dialog.focus(); }
    try {
      const facts = await ask("record", { record, set: get("set"), ...windowsAsked() });
      if (wish === this.wish && this.dialog.open) this.fill(facts, object);
    } catch (error) {
      if (wish !== this.wish) return;
      this.facts = this.stage.facts = null;
      $("large").replaceChildren(picture({ error: error.message }));
      $("fields").replaceChildren();
    }
  }

  // Show the open record in another window.
  async repaint() {
    if (!this.isOpen || !this.facts) return;
    const wish = (this.wish += 1);
    try {
      const facts = await ask("record", { record: this.facts.record, ...windowsAsked() });
      if (wish !== this.wish || !facts.picture) return;
      this.facts = facts;
      this.levels.show(facts.levels);
      this.stage.repaint(facts);
    } catch (error) { this.stage.say(error.message); }
  }

  fill(facts, object) {
    this.levels.show(facts.levels);
    this.facts = facts; this.pinned = null; this.rows = []; this.legends = [];
    $("detail-key").textContent = facts.file || facts.key;
    const parts = [];
    if (facts.error) parts.push(element("p", { class: "note" }, facts.error));
    if (facts.label !== null) parts.push(element("h3", {}, "class"), element("div", {}, dot(facts.label), `${nameOf(facts.label)} (${facts.label})`));
    if (facts.value) parts.push(element("h3", {}, "value"), element("div", {}, facts.value));
    if (facts.boxes) parts.push(element("h3", {}, `boxes: ${facts.box_count}`), ...this.boxes(facts));
    if (facts.landmarks?.length) parts.push(element("h3", {}, `landmarks: ${facts.landmarks.length}`), table(facts.landmarks.map((point, n) => [n + 1, point.join(", ")])));
    for (const [n, points] of (facts.keypoints ?? []).entries()) parts.push(...keypoints(points, facts.keypoints.length > 1 ? n + 1 : ""));
    if (facts.polygons?.some((p) => p.length)) parts.push(element("h3", {}, "outlines"), table(facts.polygons.map((p, n) => [n + 1, `${p.length} points`])));
    for (const part of facts.parts ?? []) parts.push(...this.part(part));
    if (facts.predictions) parts.push(element("h3", {}, "predictions"), table(predictedRows(facts)));
    const extras = Object.entries(facts.extras);
    if (extras.length) parts.push(element("h3", {}, "extras"), table(extras));
    parts.push(...similarTo(facts.record), element("h3", {}, "stored"), table(facts.stored));
    const { original } = facts;
    if (!original.found) parts.push(element("p", { class: "note" }, `The original is not at ${original.path}. To compare, start packer view with --source FOLDER.`));
    $("fields").replaceChildren(...parts);
    if (!facts.picture) { this.stage.facts = null; $("large").replaceChildren(picture(facts)); return; }
    this.stage.compare.hidden = !original.found;
    this.stage.say("");
    this.stage.show(facts);
    if (object >= 0 && object < this.rows.length) this.pin(object, true);
    if (this.comparing) this.compare();
  }

  boxes(facts) {
    const counts = new Map();
    for (const id of facts.box_labels ?? []) counts.set(id, (counts.get(id) ?? 0) + 1);
    const sorted = new Map([...counts].sort(([a], [b]) => a - b));
    const list = element("ul", { class: "objects" });
    facts.boxes.forEach((box, n) => {
      const fields = Object.entries(facts.box_fields).filter(([, values]) => values[n] !== undefined && values[n] !== "0").map(([name, values]) => `${name} ${values[n]}`);
      const id = facts.box_labels?.[n];
      const row = element("button", { type: "button", "aria-pressed": "false", title: "press: zoom to it" }, element("span", { class: "of" }, dot(id), id === undefined ? String(n + 1) : nameOf(id)), element("span", {}, box.join(", ")));
      if (fields.length) row.append(element("span", { class: "note" }, fields.join("; ")));
      for (const kind of ["mouseenter", "focus"]) row.addEventListener(kind, () => this.light(n));
      for (const kind of ["mouseleave", "blur"]) row.addEventListener(kind, () => this.light(null));
      row.addEventListener("click", () => {
        const pinned = this.pinned !== n;
        this.pin(pinned ? n : null);
        if (!box.includes(null) && this.stage.facts) { if (pinned) this.stage.zoomTo(box); else this.stage.fit(); }
      });
      this.rows.push(row);
      list.append(element("li", {}, row));
    });
    if (facts.box_count > facts.boxes.length) list.append(element("li", { class: "note" }, `and ${(facts.box_count - facts.boxes.length).toLocaleString("en")} more`));
    return sorted.size ? [this.switches(ofBoxes(sorted)), list] : [list];
  }

  part(part) {
    const made = [];
    if (part.legend?.length) made.push(this.switches(ofOverlay(part.name, part)));
    if (part.bar) made.push(element("img", { class: "bar-of-map", src: part.bar, alt: "" }), element("div", { class: "ends" }, ...part.ends.map((text) => element("span", {}, text))));
    if (part.rows) made.push(table(part.rows));
    if (part.code) made.push(element("pre", {}, part.code));
    return made.length ? [element("h3", {}, part.name), ...made] : [];
  }

  switches(rows) { this.legends.push(legend(rows)); return this.legends.at(-1); }

  // Make a box stand out while the pointer or the focus is on it or its row; else the pinned one.
  light(n, scroll = false) {
    const chosen = n ?? this.pinned;
    this.stage.choose(chosen, this.pinned);
    this.rows.forEach((row, at) => { row.classList.toggle("lit", at === chosen); row.setAttribute("aria-pressed", at === this.pinned); });
    if (scroll && n !== null) this.rows[n]?.scrollIntoView({ block: "nearest" });
  }

  pin(n, scroll = false) { this.pinned = n; this.light(n, scroll); }

  async compare() {
    const { facts, wish } = this, shown = this.comparing && facts?.original.found;
    this.stage.compare.setAttribute("aria-pressed", Boolean(shown));
    if (!shown) { this.stage.say(""); this.stage.showOriginal(null); return; }
    try {
      const original = await ask("original", { record: facts.record });
      if (wish !== this.wish || !this.comparing) return;
      this.stage.say(original.exact ? `${original.width} x ${original.height}` : "the resize is not known: it may be shifted");
      this.stage.showOriginal(original);
    } catch (error) { if (wish === this.wish) { this.stage.compare.setAttribute("aria-pressed", "false"); this.stage.say(error.message); } }
  }

  // Return whether the key was one of this dialog.
  key(event) {
    if (event.target.matches("input, select, textarea")) return null;
    const row = this.rows.indexOf(event.target);
    if (row >= 0 && (event.key === "ArrowDown" || event.key === "ArrowUp")) (this.rows[row + (event.key === "ArrowDown" ? 1 : -1)] ?? this.rows[row]).focus();
    else if (event.key === "ArrowRight" || event.key === "ArrowDown") this.step?.(1);
    else if (event.key === "ArrowLeft" || event.key === "ArrowUp") this.step?.(-1);
    else if (event.key === "o" && this.facts?.original.found) { this.comparing = !this.comparing; this.compare(); }
    else return this.stage.facts && this.stage.key(event.key) ? true : null; // Escape closes a dialog by itself
    return true;
  }
}

function keypoints(points, number) {
  const named = points.map((point, n) => [`${n + 1} ${drawn.points?.length === points.length ? drawn.points[n] : ""}`, point[2] === 0 ? "not labeled" : `${point.slice(0, 2).join(", ")}${point[2] === 1 ? ", not visible" : ""}`]);
  return [element("h3", {}, `keypoints ${number}`.trim()), table(named)];
}

export function table(rows) {
  const body = element("tbody");
  for (const [name, value] of rows) body.append(element("tr", {}, element("th", { scope: "row" }, String(name)), element("td", {}, String(value))));
  return element("table", {}, body);
}
