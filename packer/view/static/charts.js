// Charts of the whole pack: classes, boxes, sizes, the mean shape of the landmarks.
import { colorOf, element, svg } from "./draw.js";
import { ask } from "./server.js";
import { showRecords } from "./filters.js";

const WIDTH = 360, HEIGHT = 180, LEFT = 8, BASE = 150, TOP = 16;
const short = (n) => (Math.abs(n) >= 100 ? Math.round(n).toLocaleString("en") : String(Number(Number(n).toPrecision(3))));

export function charts(facts, choose) {
  const cards = facts.classes.map((part) => classes(part, choose));
  const add = (title, histogram, unit) => { if (histogram?.counts.length) cards.push(card(title, bars(histogram, unit), `median ${short(histogram.median)} ${unit}`.trim())); };
  add("Boxes per image", facts.boxes_per_image, "");
  add("Box size: square root of its area", facts.box_sizes, "px");
  add("Box width / height", facts.box_aspects, "");
  add("Image size: square root of its area", facts.image_sizes, "px");
  add("Image width / height", facts.image_aspects, "");
  if (facts.boxes_without_area) cards.push(card("Boxes without area", element("p", {}, facts.boxes_without_area.toLocaleString("en"))));
  if (facts.mean_shape) cards.push(shape(facts.mean_shape));
  return cards;
}

function card(title, content, note = "") {
  if (content instanceof SVGElement) { content.setAttribute("role", "img"); content.setAttribute("aria-label", `${title}, ${note}`); }
  return element("div", { class: "card" }, element("h3", {}, title), content, element("div", { class: "note" }, note));
}

function classes({ of, rows, more }, choose) {
  const most = Math.max(1, ...rows.map((row) => row.count));
  const list = element("div", { class: "classes" });
  for (const row of rows) {
    const fill = element("div", { class: "fill" });
    fill.style.width = `${(100 * row.count) / most}%`; fill.style.background = colorOf(row.id);
    const line = element("button", { class: "class-row", title: row.name, type: "button" }, element("span", {}, row.name), element("span", { class: "track" }, fill), element("span", {}, row.count.toLocaleString("en")));
    line.addEventListener("click", () => choose(row.id));
    list.append(line);
  }
  return card(`Classes, ${of}`, list, more ? `and ${more} more` : "");
}

function bars({ edges, counts, whole }, unit) {
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}` });
  const most = Math.max(...counts), each = (WIDTH - 2 * LEFT) / counts.length;
  counts.forEach((count, n) => {
    const high = most ? ((BASE - TOP) * count) / most : 0;
    const bar = svg("rect", { class: "bar-of", x: LEFT + n * each + 0.5, y: BASE - high, width: Math.max(0.5, each - 1), height: high, rx: Math.min(2, high) });
    const range = whole && edges[n + 1] - edges[n] === 1 ? short(edges[n]) : `${short(edges[n])} to ${short(edges[n + 1])}`;
    bar.append(Object.assign(svg("title"), { textContent: `${range} ${unit}: ${count.toLocaleString("en")}` }));
    chart.append(bar);
  });
  chart.append(svg("line", { class: "axis", x1: LEFT, x2: WIDTH - LEFT, y1: BASE + 0.5, y2: BASE + 0.5 }));
  const label = (x, y, text, anchor) => chart.append(Object.assign(svg("text", { x, y, "text-anchor": anchor }), { textContent: text }));
  const shift = whole ? 0.5 : 0, steps = [0, 0.25, 0.5, 0.75, 1];
  for (const part of steps) {
    const n = Math.round(part * (counts.length - (whole ? 1 : 0)));
    label(LEFT + (n + shift) * each, BASE + 16, short(edges[n]), part === 0 && !whole ? "start" : part === 1 && !whole ? "end" : "middle");
  }
  label(LEFT, TOP - 4, most.toLocaleString("en"), "start");
  if (unit) label(WIDTH - LEFT, TOP - 4, unit, "end");
  return chart;
}

function shape({ mean, spread, aspect, records }) {
  const height = 260, width = height * aspect, xs = mean.map((p) => p[0]), ys = mean.map((p) => p[1]);
  const chart = svg("svg", { viewBox: `${Math.min(0, ...xs) * width - 10} ${Math.min(0, ...ys) * height - 10} ${(Math.max(1, ...xs) - Math.min(0, ...xs)) * width + 20} ${(Math.max(1, ...ys) - Math.min(0, ...ys)) * height + 20}` });
  chart.append(svg("rect", { class: "frame", x: 0, y: 0, width, height, rx: 4 }));
  mean.forEach(([x, y], n) => {
    chart.append(svg("ellipse", { cx: x * width, cy: y * height, rx: spread[n][0] * width, ry: spread[n][1] * height, fill: "#ff2f6d", "fill-opacity": 0.22 }));
    chart.append(svg("circle", { cx: x * width, cy: y * height, r: 3.5, fill: "#ff2f6d", stroke: "#fff" }));
    chart.append(Object.assign(svg("text", { x: x * width + 6, y: y * height - 5 }), { textContent: String(n + 1) }));
  });
  return card("Landmarks: mean shape", chart, `${records.toLocaleString("en")} records; the ellipses are one standard deviation; the frame is the image`);
}

export const tab = {
  id: "statistics",
  name: "Statistics",
  once: true,
  async show() {
    document.getElementById("charts").replaceChildren(...charts(await ask("charts"), (id) => showRecords({ class: [id] })));
  },
};
