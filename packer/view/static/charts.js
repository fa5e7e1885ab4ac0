// Statistics of the whole pack: totals, classes, boxes, sizes, classes that are together, the mean shape of the landmarks.
import { brush } from "./brush.js";
import { card, colorOfPack, counted, link, many, MOST_COMPARED, packLegend, plural, share, short, textAt, titled } from "./cards.js";
import { colorOf, dot, element, nameOf, svg } from "./draw.js";
import { showRecords } from "./filters.js";
import { histogramCard, rangeOf, textOf } from "./histogram.js";
import { pile } from "./masonry.js";
import { ask, complain } from "./server.js";
import { pack, set } from "./state.js";

const IMAGES = ["image", "images"], BOXES = ["box", "boxes"];
const median = (histogram, unit = "") => `median ${short(histogram.median)} ${unit}`.trim();

function charts(facts) {
  const cards = [totals(facts), ...facts.classes.map(classes)];
  const images = (name, range) => showRecords({ [name]: range, crops: false });
  const perImage = (title, histogram, name, one, note) => inWords(title, histogram, one) ?? histogramCard(title, histogram, { of: IMAGES, unit: histogram.median === 1 ? one : plural(2, ...one), note, choose: (range) => images(name, range) });
  if (facts.boxes) {
    const boxes = facts.boxes_per_image;
    cards.push(perImage("Boxes per image", boxes, "boxes", BOXES, `${median(boxes)}; ${counted(facts.without_boxes, "image")} without a box`));
    if (facts.box_density) cards.push(sizes(facts));
    cards.push(centers(facts));
    if (facts.box_aspects?.counts.length) cards.push(histogramCard("Box width / height", facts.box_aspects, { of: BOXES, note: median(facts.box_aspects), choose: (range) => showRecords({ box_aspect: range, crops: true }) }));
  }
  if (facts.together) cards.push(together(facts.together));
  cards.push(...imageSizes(facts.image_sizes, facts.images, images));
  facts.values.forEach((one, number) => { if (one.counts.length) cards.push(histogramCard(one.name, one, { of: IMAGES, note: median(one), choose: (range) => images(number ? `value${number}` : "value", range) })); });
  for (const one of facts.figures) if (one.counts.length) cards.push(histogramCard(one.title[0].toUpperCase() + one.title.slice(1), one, { of: IMAGES, note: median(one), choose: (range) => images(one.name, range) }));
  if (facts.landmarks) cards.push(perImage("Landmarks per image", facts.landmarks, "points", ["landmark", "landmarks"], median(facts.landmarks)));
  if (facts.mean_shape) cards.push(shape(facts.mean_shape));
  if (Object.keys(pack.masks).length) cards.push(read(facts, "masks", "Classes of masks", "How many pixels and images each class has, and how much of an image it covers. All masks are read.", "Count pixels", maskClasses));
  cards.push(read(facts, "pixels", "Mean and std of the channels", "The exact mean and std of the channels, to normalize images in training. All images are read.", "Compute mean and std", results));
  return cards;
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
  const long = rows.length > 40, compared = pack.packs.length > 1 && pack.packs.length <= MOST_COMPARED;
  const show = (row) => showRecords(of === "tags" ? { set: [`tag:${row.id}`] } : { class: [row.id] });
  const list = element("div", { class: long ? "classes long" : "classes" });
  for (const row of compared ? [] : rows) {
    const fill = element("div", { class: "fill" });
    fill.style.width = `${(100 * row.count) / most}%`; fill.style.background = of === "tags" ? "var(--accent)" : colorOf(row.id);
    const inImages = of === "boxes" ? `, in ${counted(row.images, "image")}` : "";
    const line = element("button", { class: "class-row", type: "button", title: `${row.name}: ${many(row.count)} ${of} (${share(row.count, all)})${inImages}; show them` },
      element("span", {}, row.name), element("span", { class: "track" }, fill), element("span", {}, many(row.count)));
    if (of === "boxes" && !long) line.append(element("span", {}, many(row.images)));
    line.addEventListener("click", () => show(row));
    list.append(line);
  }
  if (compared) list.append(...comparedRows(rows, of, show));
  const present = rows.map((row) => row.count).filter(Boolean);
  const notes = [present.length > 1 && !more ? `class imbalance ${short(present[0] / present.at(-1))} : 1` : "", more ? `and ${many(more)} more` : "", empty ? `${many(empty)} without any` : "", without ? `${of === "boxes" ? counted(without, "box has", "boxes have") : counted(without, "image has", "images have")} none` : ""];
  if (compared) return card(of === "tags" ? "Tags, share of images" : `Classes, share of ${of}`, [packLegend(pack.packs), list], notes.filter(Boolean).join("; "), long ? "wide" : "");
  const head = of === "boxes" && !long ? [element("div", { class: "class-head" }, element("span", {}, "boxes"), element("span", {}, "images"))] : [];
  return card(of === "tags" ? "Tags, images" : `Classes, ${of}`, element("div", { class: head.length ? "two" : "" }, ...head, list), notes.filter(Boolean).join("; "), long ? "wide" : "");
}

// Of each class a bar for each pack: which share of its objects has it.
function comparedRows(rows, of, show) {
  const wholes = pack.packs.map((_, n) => (of === "tags" ? pack.packs[n].records : rows.reduce((sum, row) => sum + row.parts[n], 0)) || 1);
  const shares = rows.map((row) => row.parts.map((count, n) => count / wholes[n])), most = Math.max(...shares.flat(), 1e-9);
  return rows.map((row, at) => {
    const texts = shares[at].map((part) => `${(100 * part).toFixed(1)} %`), track = element("span", { class: "track" });
    const says = pack.packs.map(({ name }, n) => `${name} ${texts[n]}, ${many(row.parts[n])}`).join("; ");
    shares[at].forEach((part, n) => {
      const fill = element("div", { class: "fill" });
      fill.style.width = `${(100 * part) / most}%`; fill.style.background = colorOfPack(n);
      track.append(fill);
    });
    const made = link("", () => show(row), { class: "class-row of-packs", title: `${row.name}: ${says}; show them` });
    made.append(element("span", {}, row.name), track, element("span", {}, ...texts.map((text) => element("div", {}, text))));
    return made;
  });
}

// A sentence, if all have the same number.
function inWords(title, { edges, counts }, [one, several]) {
  const filled = counts.map((count, n) => (count ? n : -1)).filter((n) => n >= 0);
  if (filled.length !== 1 || edges[filled[0] + 1] - edges[filled[0]] !== 1) return null;
  const number = edges[filled[0]];
  return card(title, element("p", { class: "words" }, `Every image has ${number || "no"} ${number === 1 ? one : several}.`));
}

function axes(chart, label) { chart.setAttribute("aria-label", label); return chart; }

// A density in a frame, from which cells are chosen. `says` and `choose` get the corners of the chosen cells, with rows as in `counts`.
function heat(chart, counts, frame, { upward = false, ...options }) {
  const n = counts.length, wide = frame.width / n, high = frame.height / n, rowAt = (row) => (upward ? n - 1 - row : row);
  const most = Math.max(1, ...counts.flat());
  chart.append(svg("rect", { class: "frame", ...frame }));
  counts.forEach((row, y) => row.forEach((count, x) => {
    if (count) chart.append(svg("rect", { class: "bar-of", x: frame.x + x * wide, y: frame.y + rowAt(y) * high, width: wide + 0.3, height: high + 0.3, "fill-opacity": (0.08 + 0.92 * Math.sqrt(count / most)).toFixed(3) }));
  }));
  const corners = ([left, top], [right, bottom]) => [[left, right], [rowAt(top), rowAt(bottom)].sort((a, b) => a - b)];
  const inside = ([x1, x2], [y1, y2]) => counts.slice(y1, y2 + 1).reduce((all, row) => all + row.slice(x1, x2 + 1).reduce((a, b) => a + b, 0), 0);
  const says = (from, to) => { const at = corners(from, to); return `${options.says(...at)}: ${counted(inside(...at), ...BOXES)}`; };
  const choose = (from, to) => { const at = corners(from, to); if (inside(...at)) options.choose(...at); };
  return brush(chart, { frame, size: [n, n], says, choose, line: options.line });
}

// A range of the outermost cells has no end there: they hold what is beyond, too.
const openRange = (edges, from, to) => `${from ? edges[from] : ""}..${to < edges.length - 2 ? `<${edges[to + 1]}` : ""}`;

function centers({ centers: { x, y, counts, aspect }, boxes }) {
  const height = 240, width = Math.min(420, Math.max(120, height * aspect)), left = 34, frame = { x: left, y: 4, width, height };
  const chart = svg("svg", { viewBox: `0 0 ${left + width + 16} ${height + 40}`, class: "heat", "aria-label": "where in the image the centers of boxes are" });
  const most = Math.max(...counts.flat()), line = element("div", { class: "note" }, `${counted(boxes, ...BOXES)}; the frame is the image; the darkest cell has ${many(most)}`);
  heat(chart, counts, frame, {
    line,
    says: ([x1, x2], [y1, y2]) => `${textOf(x, x1, x2)} % from the left, ${textOf(y, y1, y2)} % from the top`,
    choose: ([x1, x2], [y1, y2]) => showRecords({ box_x: openRange(x, x1, x2), box_y: openRange(y, y1, y2), crops: true }),
  });
  for (const percent of [0, 50, 100]) chart.append(textAt(left + (width * percent) / 100, height + 18, percent), textAt(left - 5, 8 + (height * percent) / 100, percent, "end"));
  chart.append(textAt(left + width / 2, height + 34, "center, % of the width and height"));
  return card("Centers of boxes", chart, line);
}

function sizes({ box_density: { x, y, counts }, box_sizes: [small, medium, large], boxes_without_area: empty, boxes }) {
  const side = 250, left = 46, frame = { x: left, y: 6, width: side, height: side }, n = counts.length;
  const chart = svg("svg", { viewBox: `0 0 ${left + side + 16} ${side + 40}`, class: "heat", "aria-label": "width and height of boxes" });
  const line = element("div", { class: "note" }, `COCO's sizes are the dashed lines; the darkest cell has ${many(Math.max(...counts.flat()))}`);
  heat(chart, counts, frame, {
    line, upward: true,
    says: ([x1, x2], [y1, y2]) => `${textOf(x, x1, x2)} px wide, ${textOf(y, y1, y2)} px high`,
    choose: ([x1, x2], [y1, y2]) => showRecords({ box_width: rangeOf(x, x1, x2), box_height: rangeOf(y, y1, y2), crops: true }),
  });
  const at = (value, edges) => (Math.log(value / edges[0]) / Math.log(edges[n] / edges[0])) * side;
  for (const tick of [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]) {
    if (tick >= x[0] && tick <= x[n]) chart.append(textAt(left + at(tick, x), side + 20, many(tick)));
    if (tick >= y[0] && tick <= y[n]) chart.append(textAt(left - 5, 10 + side - at(tick, y), many(tick), "end"));
  }
  chart.append(textAt(left + side / 2, side + 36, "width and height, px"));
  for (const area of [32 ** 2, 96 ** 2]) { // lines of equal area
    const from = Math.max(x[0], area / y[n]), to = Math.min(x[n], area / y[0]);
    if (from < to) chart.append(svg("line", { class: "limit", x1: left + at(from, x), y1: 6 + side - at(area / from, y), x2: left + at(to, x), y2: 6 + side - at(area / to, y) }));
  }
  return card("Width and height of boxes", [chart, ofSizes([["small, below 32 x 32 px", small, "..<1024"], ["medium", medium, "1024..<9216"], ["large, 96 x 96 px and more", large, "9216.."]], boxes)], line).appendChild(element("div", { class: "note" }, empty ? `${counted(empty, ...BOXES)} without area ${plural(empty, "is", "are")} not shown.` : "")).parentElement;
}

function ofSizes(rows, boxes) {
  return element("div", { class: "sizes" }, ...rows.map(([name, count, area]) => link(`${many(count)} ${name} (${share(count, boxes)})`, () => showRecords({ box_area: area, crops: true }), { class: "plain-link", ...(count ? {} : { disabled: "" }) })));
}

function imageSizes({ distinct, common, size, aspect }, images, show) {
  if (distinct === 1) return [card("Image sizes", element("p", { class: "words" }, `All images are ${common[0][0]} x ${common[0][1]} pixels.`))];
  const body = element("tbody");
  for (const [width, height, count] of common) body.append(element("tr", {}, element("td", {}, link(`${width} x ${height}`, () => showRecords({ width: `${width}..${width}`, height: `${height}..${height}`, crops: false }), { class: "plain-link", title: "show them" })), element("td", {}, many(count)), element("td", {}, share(count, images))));
  const head = element("thead", {}, element("tr", {}, ...["size, px", "images", "share"].map((text) => element("th", { scope: "col" }, text))));
  const cards = [card(size ? "Most common image sizes" : "Image sizes", element("table", { class: "plain" }, head, body), distinct > common.length ? `${many(distinct)} different sizes` : "")];
  const add = (title, histogram, name, unit = "") => cards.push(histogramCard(title, histogram, { of: IMAGES, unit, note: median(histogram, unit), choose: (range) => show(name, range) }));
  if (size) { add("Image size: square root of its area", size, "square", "px"); add("Image width / height", aspect, "aspect"); }
  return cards;
}

function together({ ids, counts, pairs, classes }) {
  const both = (a, b) => showRecords({ class: [a, b], match: "all" });
  const list = element("div", { class: "pairs" }, ...pairs.map(([a, b, count]) => pair(a, b, count, pairs[0][2], both)));
  const most = classes > ids.length ? `The ${ids.length} classes of most images, of ${many(classes)}. ` : "";
  const line = element("div", { class: "note of-matrix" }, `${most}How many of the images with the class of the row also have the class of the column. A click shows them; with Shift, those without it.`);
  return card("Classes in the same image", [line, element("div", { class: "matrix-and-pairs" }, element("div", { class: "across" }, matrix(ids, counts, line, both)), list)], "", ids.length > 8 ? "wide" : "");
}

function matrix(ids, counts, line, both) {
  const cell = 22, most = 16, cut = (text) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const longest = Math.max(...ids.map((id) => cut(nameOf(id)).length)), left = 16 + longest * 6.5, top = 16 + longest * 5, side = ids.length * cell, width = left + side + 16 + longest * 4;
  const chart = svg("svg", { viewBox: `0 0 ${width} ${top + side + 4}`, class: "matrix", "aria-label": "classes in the same image" });
  chart.style.width = `${width}px`;
  ids.forEach((id, n) => {
    chart.append(titled(textAt(left - 6, top + n * cell + 15, cut(nameOf(id)), "end"), nameOf(id)));
    chart.append(Object.assign(svg("text", { transform: `translate(${left + n * cell + 14} ${top - 6}) rotate(-50)` }), { textContent: cut(nameOf(id)) }));
    counts[n].forEach((count, m) => {
      const place = { x: left + m * cell, y: top + n * cell, width: cell - 1, height: cell - 1 };
      chart.append(svg("rect", { class: "frame", ...place }));
      if (n !== m && count) chart.append(svg("rect", { class: "bar-of", ...place, "fill-opacity": (0.1 + (0.9 * count) / counts[n][n]).toFixed(3) }));
    });
  });
  const says = ([m, n]) => (n === m ? `${counted(counts[n][n], "image")} with ${nameOf(ids[n])}` : `${many(counts[n][m])} of ${counted(counts[n][n], "image")} with ${nameOf(ids[n])} also ${plural(counts[n][m], "has", "have")} ${nameOf(ids[m])}`);
  const choose = ([m, n], to, shifted) => {
    if (n === m) showRecords({ class: [ids[n]] });
    else if (shifted) showRecords({ class: [ids[n]], not: [ids[m]] });
    else if (counts[n][m]) both(ids[n], ids[m]);
  };
  return brush(chart, { frame: { x: left, y: top, width: side, height: side }, size: [ids.length, ids.length], says, choose, line, single: true });
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
