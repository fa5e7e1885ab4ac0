// What cards of statistics are made of: words for numbers, links, and the card itself.
import { element, svg } from "./draw.js";

export const short = (n) => (Math.abs(n) >= 100 ? Math.round(n).toLocaleString("en") : String(Number(Number(n).toPrecision(3))));
export const many = (n) => n.toLocaleString("en");
export const plural = (count, one, several = `${one}s`) => (count === 1 ? one : several);
export const counted = (count, one, several) => `${many(count)} ${plural(count, one, several)}`;
export const share = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "");
export const titled = (node, text) => { node.append(Object.assign(svg("title"), { textContent: text })); return node; };
export const textAt = (x, y, text, anchor = "middle") => Object.assign(svg("text", { x, y, "text-anchor": anchor }), { textContent: text });

export function card(title, content, note = "", kind = "") {
  const made = element("div", { class: `card ${kind}`.trim() }, element("h2", {}, title), ...[content].flat());
  if (note) made.append(note instanceof Element ? note : element("div", { class: "note" }, note));
  return made;
}

export function link(text, go, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", go);
  return made;
}

// The colors of packs that are compared, and what they mean.
const PACK_COLORS = ["var(--accent)", "#ea580c", "#0d9488", "#a855f7"];
export const MOST_COMPARED = PACK_COLORS.length;
export const colorOfPack = (number) => PACK_COLORS[number];
export function packLegend(packs) {
  return element("div", { class: "legend-of-packs" }, ...packs.map(({ name }, number) => {
    const dot = element("span", { class: "dot" });
    dot.style.background = colorOfPack(number);
    return element("span", {}, dot, name);
  }));
}
