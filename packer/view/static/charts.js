// Statistics of the whole pack: totals, classes, boxes, sizes, classes that are together, the mean shape of the landmarks.
import { colorOf, dot, element, nameOf, svg } from "./draw.js";
import { showRecords } from "./filters.js";
import { pile } from "./masonry.js";
import { ask, complain } from "./server.js";
import { pack, set } from "./state.js";

const WIDTH = 360, HEIGHT = 180, LEFT = 8, BASE = 150, TOP = 16;
const short = (n) => (Math.abs(n) >= 100 ? Math.round(n).toLocaleString("en") : String(Number(Number(n).toPrecision(3))));
const many = (n) => n.toLocaleString("en");
const plural = (count, one, several = `${one}s`) => (count === 1 ? one : several);
const counted = (count, one, several) => `${many(count)} ${plural(count, one, several)}`;
const share = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "");
const titled = (node, text) => { node.append(Object.assign(svg("title"), { textContent: text })); return node; };

function charts(facts) {
  const cards = [totals(facts), ...facts.classes.map(classes)];
  const add = (title, histogram, unit) => { if (histogram?.counts.length) cards.push(card(title, bars(histogram, unit, title), `median ${short(histogram.median)} ${unit}`.trim())); };
  if (facts.boxes) {
    cards.push(inWords("Boxes per image", facts.boxes_per_image, "box") ?? card("Boxes per image", bars(facts.boxes_per_image, "", "boxes per image"), `median ${short(facts.boxes_per_image.median)}; ${counted(facts.without_boxes, "image")} without a box`));
    if (facts.box_density) cards.push(sizes(facts));
    cards.push(centers(facts));
    add("Box width / height", facts.box_aspects, "");
  }
  if (facts.together) cards.push(together(facts.together));
  cards.push(...imageSizes(facts.image_sizes, facts.images));
  for (const one of facts.values) add(one.name, one, "");
  if (facts.landmarks) cards.push(inWords("Landmarks per image", facts.landmarks, "landmark") ?? card("Landmarks per image", bars(facts.landmarks, "", "landmarks per image")));
  if (facts.mean_shape) cards.push(shape(facts.mean_shape));
  if (Object.keys(pack.masks).length) cards.push(read(facts, "masks", "Classes of masks", "How many pixels and images each class has, and how much of an image it covers. All masks are read.", "Count pixels", maskClasses));
  cards.push(read(facts, "pixels", "Mean and std of the channels", "The exact mean and std of the channels, to normalize images in training. All images are read.", "Compute mean and std", results));
  return cards;
}

function card(title, content, note = "", kind = "") {
  const made = element("div", { class: `card ${kind}`.trim() }, element("h2", {}, title), content);
  if (note) made.append(element("div", { class: "note" }, note));
  return made;
}

function link(text, go, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", go);
  return made;
}

function totals(facts) {
  const row = element("div", { class: "totals" });
  const add = (number, name, go) => {
    const inside = [element("strong", {}, number), element("span", {}, name)];
    if (!go) row.append(element("div", {}, ...inside));
    else { const made = link("", go, { title: "show them" }); made.append(...inside); row.append(made); }
  };
  add(many(facts.images), plural(facts.images, "image"));
  if (facts.boxes !== undefined) add(many(facts.boxes), plural(facts.boxes, "box", "boxes"));
  if (pack.classes.length) add(many(pack.classes.length), plural(pack.classes.length, "class", "classes"));
  add(facts.bytes, "on disk");
  if (facts.without_boxes !== undefined) add(many(facts.without_boxes), `${plural(facts.without_boxes, "image")} without a box`, facts.without_boxes ? () => showRecords({ boxes: "0..0" }) : null);
  for (const part of facts.classes) if (part.of === "images" && part.without) add(many(part.without), `${plural(part.without, "image")} without a class`, () => showRecords({ class: [-1] }));
  add(many(facts.equal), plural(facts.equal, "copy of another image", "copies of other images"), facts.equal ? () => set({ tab: "problems" }) : null);
  for (const part of pack.packs.length > 1 ? pack.packs : []) add(many(part.records), `in ${part.name}`);
  return card("Totals", row, "", "wide");
}

function classes({ of, rows, more, without, empty }) {
  const most = Math.max(1, ...rows.map((row) => row.count)), all = rows.reduce((sum, row) => sum + row.count, 0);
  const long = rows.length > 40;
  const list = element("div", { class: long ? "classes long" : "classes" });
  for (const row of rows) {
    const fill = element("div", { class: "fill" });
    fill.style.width = `${(100 * row.count) / most}%`; fill.style.background = of === "tags" ? "var(--accent)" : colorOf(row.id);
    const inImages = of === "boxes" ? `, in ${counted(row.images, "image")}` : "";
    const line = element("button", { class: "class-row", type: "button", title: `${row.name}: ${many(row.count)} ${of} (${share(row.count, all)})${inImages}; show them` },
      element("span", {}, row.name), element("span", { class: "track" }, fill), element("span", {}, many(row.count)));
    if (of === "boxes" && !long) line.append(element("span", {}, many(row.images)));
    line.addEventListener("click", () => showRecords(of === "tags" ? { set: [`tag:${row.id}`] } : { class: [row.id] }));
    list.append(line);
  }
  const present = rows.map((row) => row.count).filter(Boolean);
  const notes = [present.length > 1 && !more ? `class imbalance ${short(present[0] / present.at(-1))} : 1` : "", more ? `and ${many(more)} more` : "", empty ? `${many(empty)} without any` : "", without ? `${of === "boxes" ? counted(without, "box has", "boxes have") : counted(without, "image has", "images have")} none` : ""];
  const head = of === "boxes" && !long ? [element("div", { class: "class-head" }, element("span", {}, "boxes"), element("span", {}, "images"))] : [];
  return card(of === "tags" ? "Tags, images" : `Classes, ${of}`, element("div", { class: head.length ? "two" : "" }, ...head, list), notes.filter(Boolean).join("; "), long ? "wide" : "");
}

// A sentence, if all have the same number.
function inWords(title, { edges, counts }, one) {
  const filled = counts.map((count, n) => (count ? n : -1)).filter((n) => n >= 0);
  if (filled.length !== 1 || edges[filled[0] + 1] - edges[filled[0]] !== 1) return null;
  const number = edges[filled[0]];
  return card(title, element("p", { class: "words" }, `Every image has ${number || "no"} ${number === 1 ? one : one === "box" ? "boxes" : `${one}s`}.`));
}

function axes(chart, label) { chart.setAttribute("aria-label", label); return chart; }

function bars({ edges, counts, whole }, unit, name) {
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  const most = Math.max(...counts), each = (WIDTH - 2 * LEFT) / counts.length;
  counts.forEach((count, n) => {
    const high = most ? ((BASE - TOP) * count) / most : 0;
    const bar = svg("rect", { class: "bar-of", x: LEFT + n * each + 0.5, y: BASE - high, width: Math.max(0.5, each - 1), height: high, rx: Math.min(2, high) });
    chart.append(titled(bar, `${rangeText(edges, n, whole)} ${unit}: ${many(count)}`.replace(" :", ":")));
  });
  chart.append(svg("line", { class: "axis", x1: LEFT, x2: WIDTH - LEFT, y1: BASE + 0.5, y2: BASE + 0.5 }));
  const label = (x, y, text, anchor) => chart.append(Object.assign(svg("text", { x, y, "text-anchor": anchor }), { textContent: text }));
  const steps = new Set([0, 0.25, 0.5, 0.75, 1].map((part) => Math.round(part * (counts.length - (whole ? 1 : 0)))));
  for (const n of steps) {
    const ends = !whole && (n === 0 ? "start" : n === counts.length && "end");
    label(LEFT + (n + (whole ? 0.5 : 0)) * each, BASE + 16, whole ? rangeText(edges, n, true) : short(edges[n]), ends || "middle");
  }
  label(LEFT, TOP - 4, most.toLocaleString("en"), "start");
  if (unit) label(WIDTH - LEFT, TOP - 4, unit, "end");
  return axes(chart, `histogram of ${name}`);
}

function rangeText(edges, n, whole) {
  const last = whole ? edges[n + 1] - 1 : edges[n + 1];
  return whole && last === edges[n] ? short(edges[n]) : `${short(edges[n])}${whole ? "–" : " to "}${short(last)}`;
}

// Cells of a density: darker is more, on a scale of square roots.
function cells(chart, counts, place, says) {
  const most = Math.max(1, ...counts.flat());
  counts.forEach((row, y) => row.forEach((count, x) => {
    if (count) chart.append(titled(svg("rect", { class: "bar-of", ...place(x, y), "fill-opacity": (0.08 + 0.92 * Math.sqrt(count / most)).toFixed(3) }), says(x, y, count)));
  }));
}

function centers({ centers: { counts, aspect }, boxes }) {
  const high = 240, wide = Math.min(420, Math.max(120, high * aspect)), n = counts.length;
  const chart = svg("svg", { viewBox: `-2 -2 ${wide + 4} ${high + 4}`, role: "img", class: "heat" });
  chart.append(svg("rect", { class: "frame", x: 0, y: 0, width: wide, height: high }));
  const percent = (k) => Math.round((100 * (k + 0.5)) / n);
  cells(chart, counts, (x, y) => ({ x: (x * wide) / n, y: (y * high) / n, width: wide / n + 0.3, height: high / n + 0.3 }), (x, y, count) => `${percent(x)} % from the left, ${percent(y)} % from the top: ${counted(count, "box", "boxes")}`);
  return card("Centers of boxes", axes(chart, "where in the image the centers of boxes are"), `${counted(boxes, "box", "boxes")}; the frame is the image`);
}

function sizes({ box_density: { x, y, counts }, box_sizes: [small, medium, large], boxes_without_area: empty, boxes }) {
  const side = 250, from = 36, n = counts.length;
  const chart = svg("svg", { viewBox: `0 0 ${from + side + 12} ${side + 40}`, role: "img", class: "heat" });
  chart.append(svg("rect", { class: "frame", x: from, y: 6, width: side, height: side }));
  cells(chart, counts, (i, j) => ({ x: from + (i * side) / n, y: 6 + side - ((j + 1) * side) / n, width: side / n + 0.3, height: side / n + 0.3 }), (i, j, count) => `${short(x[i])} to ${short(x[i + 1])} px wide, ${short(y[j])} to ${short(y[j + 1])} px high: ${counted(count, "box", "boxes")}`);
  const at = (value, edges) => (Math.log(value / edges[0]) / Math.log(edges[n] / edges[0])) * side;
  const label = (left, top, text, anchor) => chart.append(Object.assign(svg("text", { x: left, y: top, "text-anchor": anchor }), { textContent: text }));
  for (const tick of [1, 3, 10, 30, 100, 300, 1000, 3000, 10000]) {
    if (tick >= x[0] && tick <= x[n]) label(from + at(tick, x), side + 20, tick, "middle");
    if (tick >= y[0] && tick <= y[n]) label(from - 4, 10 + side - at(tick, y), tick, "end");
  }
  label(from + side / 2, side + 36, "width x height, px", "middle");
  for (const area of [32 ** 2, 96 ** 2]) { // lines of equal area
    const left = Math.max(x[0], area / y[n]), right = Math.min(x[n], area / y[0]);
    if (left >= right) continue;
    chart.append(svg("line", { class: "limit", x1: from + at(left, x), y1: 6 + side - at(area / left, y), x2: from + at(right, x), y2: 6 + side - at(area / right, y) }));
  }
  const parts = [["small, below 32 x 32 px", small], ["medium", medium], ["large, 96 x 96 px and more", large]].map(([name, count]) => `${many(count)} ${name} (${share(count, boxes)})`);
  return card("Width and height of boxes", axes(chart, "width and height of boxes"), `${parts.join("; ")}: COCO's sizes, the dashed lines.${empty ? ` ${counted(empty, "box", "boxes")} without area ${plural(empty, "is", "are")} not shown.` : ""}`);
}

function imageSizes({ distinct, common, size, aspect }, images) {
  if (distinct === 1) return [card("Image sizes", element("p", { class: "words" }, `All images are ${common[0][0]} x ${common[0][1]} pixels.`))];
  const body = element("tbody");
  for (const [width, height, count] of common) body.append(element("tr", {}, element("td", {}, `${width} x ${height}`), element("td", {}, many(count)), element("td", {}, share(count, images))));
  const head = element("thead", {}, element("tr", {}, ...["size, px", "images", "share"].map((text) => element("th", { scope: "col" }, text))));
  const cards = [card(size ? "Most common image sizes" : "Image sizes", element("table", { class: "plain" }, head, body), distinct > common.length ? `${many(distinct)} different sizes` : "")];
  if (size) cards.push(card("Image size: square root of its area", bars(size, "px", "image sizes"), `median ${short(size.median)} px`), card("Image width / height", bars(aspect, "", "width / height of images"), `median ${short(aspect.median)}`));
  return cards;
}

function together({ ids, counts, pairs }) {
  const parts = [], cell = 22, left = 120, top = 96;
  const both = (a, b) => showRecords({ class: [a, b], match: "all" });
  const cut = (text) => (text.length > 16 ? `${text.slice(0, 15)}…` : text);
  if (ids) {
    const width = left + ids.length * cell + 60, chart = svg("svg", { viewBox: `0 0 ${width} ${top + ids.length * cell + 4}`, role: "img", class: "matrix" });
    chart.style.width = `${width}px`;
    ids.forEach((id, n) => {
      chart.append(titled(Object.assign(svg("text", { x: left - 6, y: top + n * cell + 15, "text-anchor": "end" }), { textContent: cut(nameOf(id)) }), nameOf(id)));
      chart.append(Object.assign(svg("text", { transform: `translate(${left + n * cell + 14} ${top - 6}) rotate(-50)` }), { textContent: cut(nameOf(id)) }));
      counts[n].forEach((count, m) => {
        const place = { x: left + m * cell, y: top + n * cell, width: cell - 1, height: cell - 1 };
        chart.append(svg("rect", { class: "frame", ...place }));
        if (n === m || !count) return;
        const made = svg("rect", { class: "bar-of cell", ...place, "fill-opacity": (0.1 + (0.9 * count) / counts[n][n]).toFixed(3) });
        made.addEventListener("click", () => both(id, ids[m]));
        chart.append(titled(made, `${many(count)} of ${counted(counts[n][n], "image")} with ${nameOf(id)} also ${plural(count, "has", "have")} ${nameOf(ids[m])}`));
      });
    });
    parts.push(element("div", { class: "across", tabindex: 0, role: "group", "aria-label": "matrix of classes" }, axes(chart, "classes in the same image")), element("p", { class: "note" }, "How many of the images with the class of the row also have the class of the column."));
  }
  const list = element("div", { class: "pairs" });
  for (const [a, b, count] of pairs.slice(0, ids ? 12 : 24)) list.append(pair(a, b, count, pairs[0][2], both));
  return card("Classes in the same image", element("div", {}, ...parts, list), "", ids?.length > 8 ? "wide" : "");
}

function pair(a, b, count, most, both) {
  const fill = element("div", { class: "fill" });
  fill.style.width = `${(100 * count) / most}%`; fill.style.background = "var(--accent)";
  const name = element("span", {}, dot(a), nameOf(a), " + ", dot(b), nameOf(b));
  const made = link("", () => both(a, b), { class: "class-row", title: `${nameOf(a)} and ${nameOf(b)}: ${counted(count, "image")}; show them` });
  made.append(name, element("span", { class: "track" }, fill), element("span", {}, many(count)));
  return made;
}

function shape({ mean, spread, aspect, records }) {
  const height = 260, width = height * aspect, xs = mean.map((p) => p[0]), ys = mean.map((p) => p[1]);
  const chart = svg("svg", { class: "heat", viewBox: `${Math.min(0, ...xs) * width - 10} ${Math.min(0, ...ys) * height - 10} ${(Math.max(1, ...xs) - Math.min(0, ...xs)) * width + 20} ${(Math.max(1, ...ys) - Math.min(0, ...ys)) * height + 20}` });
  chart.append(svg("rect", { class: "frame", x: 0, y: 0, width, height, rx: 4 }));
  mean.forEach(([x, y], n) => {
    chart.append(svg("ellipse", { cx: x * width, cy: y * height, rx: spread[n][0] * width, ry: spread[n][1] * height, fill: "#ff2f6d", "fill-opacity": 0.22 }));
    chart.append(svg("circle", { cx: x * width, cy: y * height, r: 3.5, fill: "#ff2f6d", stroke: "#fff" }));
    chart.append(Object.assign(svg("text", { x: x * width + 6, y: y * height - 5 }), { textContent: String(n + 1) }));
  });
  return card("Landmarks: mean shape", chart, `${counted(records, "record")}; the ellipses are one standard deviation; the frame is the image`);
}

// What all pixels are read for: only when asked for, in the background of the server. `results` makes elements of its answer.
function read({ images }, name, title, text, action, results) {
  const inside = element("div", { role: "status" });
  const begin = link(action, () => follow(true));
  inside.append(element("p", {}, text), begin);
  const follow = async (start) => {
    try {
      const facts = await ask(name, start ? { start: 1 } : {});
      if (facts.error) { inside.replaceChildren(element("p", { class: "note" }, facts.error), begin); return; }
      if (facts[RESULT[name]]) { inside.replaceChildren(...results(facts)); return; }
      if (!facts.begun) return;
      inside.replaceChildren(element("p", {}, `${many(facts.done)} of ${many(images)} images`), element("progress", { max: images, value: facts.done, "aria-label": "images read" }));
      setTimeout(follow, 400);
    } catch (error) { complain(error); }
  };
  follow(false); // it may have been computed for another tab of the browser
  return card(title, inside);
}
const RESULT = { pixels: "channels", masks: "masks" };

// Of each class a bar from the share of an image below which it is in 10 % of its images to that of 90 %, with the median, on a
// scale of logarithms: a pole has a thousandth of the pixels of a road.
const LEAST_SHARE = 1e-4;
function maskClasses({ masks }) {
  const at = (value) => 100 * (1 - Math.log(Math.max(LEAST_SHARE, value)) / Math.log(LEAST_SHARE));
  const percent = (value) => `${short(100 * value)} %`;
  return masks.flatMap(({ part, classes: rows, pixels, ignored, masks: count }) => {
    const list = element("div", { class: "classes of-masks" }, element("div", { class: "class-row head" }, element("span", {}), element("span", { class: "scale" }, ...["0.01", "1", "100 %"].map((text) => element("span", {}, text))), element("span", {}, "pixels"), element("span", {}, "images")));
    for (const { id, name, pixels: own, images, shares } of rows) {
      const [low, , median, , high] = shares, track = element("span", { class: "track" });
      for (const [kind, from, to] of shares.length ? [["fill", at(low), at(high)], ["middle", at(median), at(median)]] : []) {
        const bar = element("div", { class: kind });
        bar.style.left = `${from}%`; bar.style.width = `${Math.max(0.8, to - from)}%`;
        if (kind === "fill") bar.style.background = colorOf(id);
        track.append(bar);
      }
      const says = shares.length ? `${name}: half of its images have more than ${percent(median)}, one in ten less than ${percent(low)} or more than ${percent(high)}` : name;
      list.append(element("div", { class: "class-row", title: says }, element("span", {}, name), track, element("span", {}, share(own, pixels)), element("span", {}, many(images))));
    }
    const head = masks.length > 1 ? [element("h3", {}, part)] : [];
    return [...head, list, element("p", { class: "note" }, `${counted(count, "mask")}${ignored ? `; ${share(ignored, pixels)} of the pixels ignored` : ""}. A bar is the share that a class covers of the images that have it: from the 10th to the 90th percentile, the line is the median.`)];
  });
}

function results({ channels, padded }) {
  const made = channels.map((one) => {
    const tuple = (values) => `(${values.map((value) => value.toFixed(6)).join(", ")}${values.length === 1 ? "," : ""})`;
    const text = `mean=${tuple(one.mean)}, std=${tuple(one.std)}`;
    const copy = link("Copy", async () => {
      try { await navigator.clipboard.writeText(text); copy.textContent = "Copied"; } catch { getSelection().selectAllChildren(code); }
    });
    const code = element("code", {}, text);
    const of = channels.length > 1 ? `${counted(one.images, "image")} of ${counted(one.channels, "channel")}, ${one.dtype}: ` : "";
    return element("p", {}, of, code, " ", copy);
  });
  return [...made, element("p", { class: "note" }, `For values from 0 to 1, as PackedLoader(pack, ..., mean=..., std=...) takes them.${padded ? " Includes the padding of --fit pad." : ""}`)];
}

export const tab = {
  id: "statistics",
  name: "Statistics",
  once: true,
  async show() {
    const page = document.getElementById("charts");
    page.replaceChildren(...charts(await ask("charts")));
    pile(page);
  },
};
