// One record large, with all its fields and where it came from.
import { dot, element, nameOf, picture } from "./draw.js";
import { ask, complain } from "./server.js";

const $ = (id) => document.getElementById(id);

export class Detail {
  constructor() {
    this.dialog = $("detail"); this.wish = 0; this.step = null;
    $("close").addEventListener("click", () => this.close());
    $("before").addEventListener("click", () => this.step?.(-1));
    $("after").addEventListener("click", () => this.step?.(1));
    this.dialog.addEventListener("click", (event) => { if (event.target === this.dialog) this.close(); });
  }

  get isOpen() { return this.dialog.open; }
  close() { this.wish += 1; this.dialog.close(); }

  // `step`: called with -1 or 1 for the record before or after; null where there is none
  async show(record, step) {
    const wish = (this.wish += 1);
    this.step = step;
    $("before").hidden = $("after").hidden = !step;
    if (!this.dialog.open) { $("large").replaceChildren(); $("fields").replaceChildren(); $("detail-key").textContent = ""; this.dialog.showModal(); this.dialog.focus(); }
    try {
      const facts = await ask("record", { record });
      if (wish === this.wish && this.dialog.open) this.fill(facts);
    } catch (error) {
      if (wish !== this.wish) return;
      $("large").replaceChildren(picture({ error: error.message }));
      $("fields").replaceChildren();
    }
  }

  fill(facts) {
    const redraw = (chosen) => $("large").replaceChildren(picture(facts, { tagged: true, chosen }));
    redraw(null);
    $("detail-key").textContent = facts.key;
    const parts = [table(facts.stored)];
    if (facts.error) parts.unshift(element("p", { class: "note" }, facts.error));
    if (facts.label !== null) parts.push(element("h3", {}, "class"), element("div", {}, dot(facts.label), `${nameOf(facts.label)} (${facts.label})`));
    if (facts.boxes) parts.push(element("h3", {}, `boxes: ${facts.box_count}`), this.boxes(facts, redraw));
    for (const [title, rows] of [["landmarks", facts.landmarks]]) {
      if (rows?.length) parts.push(element("h3", {}, `${title}: ${rows.length}`), table(rows.map((point, n) => [n + 1, point.join(", ")])));
    }
    if (facts.keypoints?.length) parts.push(element("h3", {}, "keypoints"), table(facts.keypoints.map((points, n) => [n + 1, points.map((p) => p.join(", ")).join("; ")])));
    if (facts.polygons?.some((p) => p.length)) parts.push(element("h3", {}, "outlines"), table(facts.polygons.map((p, n) => [n + 1, `${p.length} points`])));
    const extras = Object.entries(facts.extras);
    if (extras.length) parts.push(element("h3", {}, "extras"), table(extras));
    $("fields").replaceChildren(...parts);
  }

  boxes(facts, redraw) {
    const rows = element("tbody");
    facts.boxes.forEach((box, n) => {
      const fields = Object.entries(facts.box_fields).filter(([, values]) => values[n] !== undefined && values[n] !== "0").map(([name, values]) => `${name} ${values[n]}`);
      const id = facts.box_labels?.[n];
      const row = element("tr", {}, element("th", {}, dot(id), id === undefined ? "" : nameOf(id)), element("td", {}, box.join(", "), ...(fields.length ? [element("div", { class: "note" }, fields.join("; "))] : [])));
      row.addEventListener("mouseenter", () => redraw(n));
      row.addEventListener("mouseleave", () => redraw(null));
      rows.append(row);
    });
    if (facts.box_count > facts.boxes.length) rows.append(element("tr", {}, element("td", { colspan: 2 }, `and ${facts.box_count - facts.boxes.length} more`)));
    return element("table", {}, rows);
  }
}

export function table(rows) {
  const body = element("tbody");
  for (const [name, value] of rows) body.append(element("tr", {}, element("th", {}, String(name)), element("td", {}, String(value))));
  return element("table", {}, body);
}
