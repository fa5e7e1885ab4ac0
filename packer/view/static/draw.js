// Draws annotations over a picture, and makes elements. Text from data goes in as text, never as HTML.
import { predictedBoxes, predictedLabels, predictedShapes } from "./predicted.js";
import { grown, twinsOf } from "./twins.js";

const SVG = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// the same as hue_of in packer/stats/plots.py
export function colorOf(id) {
  if (id === null || id === undefined || id < 0) return "hsl(0 0% 60%)";
  return `hsl(${((id * 137.508 + 205) % 360).toFixed(0)} 75% 52%)`;
}

export const names = { classes: [] };
export const nameOf = (id) => names.classes[id] ?? String(id);

export function dot(id, ignored = false) {
  const made = element("span", { class: ignored ? "dot ignored" : "dot" });
  if (!ignored) made.style.background = colorOf(id);
  return made;
}

// What is drawn: not the classes that are switched off (ids of boxes; PART:ID of overlays), and of overlays only one; classes
// that no filter asks for are faint.
export const drawn = { hidden: new Set(), overlay: "", focus: new Set(), skeleton: null, points: null, predicted: new Set(), confidence: 0 };
export const isDrawn = (facts, n) => !drawn.hidden.has(facts.box_labels?.[n] ?? -1);
export const isFaint = (facts, n) => (drawn.focus.size > 0 && !drawn.focus.has(facts.box_labels?.[n])) || isFine(facts.kinds?.[n]);
// What is known to be right, where errors are shown.
export const isFine = (kind) => kind === "correct" || kind === "left out";

const known = (point) => point[0] !== null && point[1] !== null;
const SIDES = { left: "#38bdf8", right: "#fb923c" };
const sideOf = (n) => SIDES[drawn.points?.[n]?.split(" ")[0]] ?? "#fde047";

// All lines of an object as one path: those of its box, its outline, its bones.
function objects(facts, scale = 0) {
  const all = [], twins = scale ? twinsOf(facts) : new Map();
  const count = Math.max(facts.boxes?.length ?? 0, facts.polygons?.length ?? 0, facts.keypoints?.length ?? 0);
  for (let n = 0; n < count; n += 1) {
    if (!isDrawn(facts, n)) continue;
    const turned = facts.obb?.[n], [twin, first] = twins.get(n) ?? [], stored = facts.boxes?.[n], box = twin > 1 && !stored.includes(null) ? grown(stored, twin, scale) : stored;
    const outline = (turned ?? facts.polygons?.[n] ?? []).filter(known), points = facts.keypoints?.[n] ?? [];
    const seen = (at) => points[at] && known(points[at]) && points[at][2] !== 0;
    const whole = box && !box.includes(null);
    const bones = drawn.skeleton && points.length === drawn.points.length ? drawn.skeleton.filter(([a, b]) => seen(a) && seen(b)) : [];
    const [path, crowd] = facts.outlines?.[n] ?? [];
    all.push({ n, box: whole ? box : null, upright: whole && !turned, twin, alike: facts.box_labels?.[n] === facts.box_labels?.[first], outline, points, bones, path, crowd });
  }
  return all;
}

function pathOf({ box, upright, outline, points, bones, path: instance = "" }) {
  let path = instance;
  if (upright) path += `M${box[0]} ${box[1]}H${box[2]}V${box[3]}H${box[0]}Z`;
  if (outline.length) path += `M${outline.map((p) => p.join(" ")).join("L")}Z`;
  for (const [a, b] of bones) path += `M${points[a][0]} ${points[a][1]}L${points[b][0]} ${points[b][1]}`;
  return path;
}

// The parts of a record that are shown in one way (SHOWN in packer/view/facts.py), and all texts of a record.
export const partsShown = (facts, as) => (facts.parts ?? []).filter((part) => part.as === as);
export const textsOf = (facts) => (facts.parts ?? []).flatMap(({ name, texts }) => (texts ?? []).map((text) => [name, text]));

const overlays = new WeakMap(); // drawn again with every step of a zoom, a picture must not be decoded again
function overlay(part, { width, height }) {
  if (!overlays.has(part)) overlays.set(part, svg("image", { class: "overlay", width, height, preserveAspectRatio: "none" }));
  const made = overlays.get(part), href = withoutHidden(part);
  if (made.getAttribute("href") !== href) made.setAttribute("href", href);
  return made;
}

// The picture of an overlay, in which the colors of hidden classes are transparent: a PNG has their opacity in its chunk tRNS, which
// follows 33 bytes of signature and IHDR, and PLTE. A chunk is length, name, content, checksum.
const MOST_HEAD = 1444; // characters up to the end of tRNS: three bytes are four characters
function withoutHidden({ name, picture, legend }) {
  const start = picture.indexOf(",") + 1, end = start + MOST_HEAD;
  const bytes = Uint8Array.from(atob(picture.slice(start, end)), (character) => character.charCodeAt(0)), view = new DataView(bytes.buffer);
  const chunk = 45 + view.getUint32(33), content = chunk + 8, after = content + view.getUint32(chunk);
  legend.forEach(([id], n) => { bytes[content + n] = drawn.hidden.has(`${name}:${id}`) ? 0 : 255; });
  view.setUint32(after, crc32(bytes.subarray(chunk + 4, after)));
  return picture.slice(0, start) + btoa(String.fromCharCode(...bytes)) + picture.slice(end);
}

function crc32(bytes) {
  let sum = ~0;
  for (const byte of bytes) { sum ^= byte; for (let bit = 0; bit < 8; bit += 1) sum = sum & 1 ? (sum >>> 1) ^ 0xedb88320 : sum >>> 1; }
  return ~sum;
}

const TWIN = "#fde047"; // of a second box of the same class
// The lines and points of all objects, in pixels of the image, which is shown `scale` times as large. Lines have a dark
// and a light casing, so that each color is seen on each picture. `chosen`: the number of an object that stands out, while the
// others stay legible; `kept`: of one that is no less than it was.
export function shapes(facts, { scale, chosen = null, kept = null, width = 2 }) {
  const group = svg("g", { class: "shapes" }), all = objects(facts, scale);
  for (const part of partsShown(facts, "overlay")) if (part.name === drawn.overlay) group.append(overlay(part, facts));
  const line = { fill: "none", "vector-effect": "non-scaling-stroke", "stroke-linejoin": "round" };
  const cased = all.filter(({ n }) => n === chosen || !isFaint(facts, n)).map(pathOf).join("");
  if (cased) for (const [color, more] of [["#fff", 3], ["#000", 1.6]]) group.append(svg("path", { class: "casing", d: cased, ...line, stroke: color, "stroke-width": width + more, "stroke-opacity": color === "#fff" ? 0.55 : 0.8 }));
  for (const { n, box, upright, twin, alike, outline, points, bones, path, crowd } of all) {
    const faint = n !== chosen && isFaint(facts, n), aside = chosen !== null && n !== chosen && n !== kept, color = twin > 1 && alike ? TWIN : colorOf(facts.box_labels?.[n]);
    const one = svg("g", faint ? { class: "faint" } : aside ? { class: "aside" } : {});
    const own = { ...line, stroke: color, "stroke-width": faint ? 1 : n === chosen ? width + 2 : width, ...(facts.ignored?.[n] ? { "stroke-dasharray": "5 4" } : twin > 1 ? { "stroke-dasharray": "7 6" } : {}) };
    const filled = { fill: color, "fill-opacity": n === chosen ? 0.3 : outline.length && !faint ? 0.2 : 0 };
    if (path) one.append(svg("path", { class: crowd ? "instance crowd" : "instance", d: path, ...own, fill: color }));
    if (outline.length) one.append(svg("polygon", { class: "outline", points: outline.join(" "), ...own, ...filled }));
    if (upright) one.append(svg("rect", { class: "box", x: box[0], y: box[1], width: Math.max(0, box[2] - box[0]), height: Math.max(0, box[3] - box[1]), ...own, ...(outline.length || path ? {} : filled) }));
    for (const [a, b] of bones) one.append(svg("path", { class: "bone", d: `M${points[a][0]} ${points[a][1]}L${points[b][0]} ${points[b][1]}`, ...own, stroke: sideOf(Math.max(a, b)) }));
    points.forEach((point, at) => { if (point[2] !== 0) one.append(...dotAt(point, at, scale, sideOf(at), width, drawn.points?.[at])); });
    group.append(one);
  }
  group.append(...predictedShapes(facts, width));
  (facts.landmarks ?? []).forEach((point, at) => group.append(...dotAt(point, at, scale, "#ff2f6d", width)));
  return group;
}

// A point that is marked as not visible is hollow.
function dotAt(point, at, scale, color, width, name = String(at + 1)) {
  if (!known(point)) return [];
  const hollow = point[2] === 1;
  const made = svg("circle", { class: "landmark", cx: point[0], cy: point[1], r: (width + 1) / scale, fill: hollow ? "#000" : color, stroke: hollow ? color : "#fff", "stroke-width": hollow ? 2 : 1, "vector-effect": "non-scaling-stroke" });
  made.append(Object.assign(svg("title"), { textContent: name }));
  return [made];
}

const ruler = document.createElement("canvas").getContext("2d");
const widths = new Map();
function widthOf(text, size) {
  const key = `${size} ${text}`;
  if (!widths.has(key)) {
    if (widths.size > 5000) widths.clear();
    ruler.font = `600 ${size}px ${getComputedStyle(document.body).fontFamily}`;
    widths.set(key, Math.ceil(ruler.measureText(text).width));
  }
  return widths.get(key);
}

// black or white, whichever is read better on an sRGB color
function inkOn(color) {
  ruler.fillStyle = "#000"; ruler.fillStyle = toRgb(color);
  const [r, g, b] = [1, 3, 5].map((at) => (parseInt(ruler.fillStyle.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000" : "#fff";
}
const toRgb = (color) => color.replace(/hsl\(([\d.]+) ([\d.]+)% ([\d.]+)%\)/, "hsl($1, $2%, $3%)");

// Names of boxes (and, with `numbers`, of points) as tags that do not cover each other: each has a few places; it takes the
// first that is free, and is left out if none is. Coordinates are those of the screen: `at` = [x, y] of the image there,
// `room` = [width, height] of what is seen; `every`: also of small objects. Boxes in the same place have numbers. Returns the tags, and how many were left out.
export function tags(facts, { scale, at = [0, 0], room, chosen = null, size = 12, most = 300, numbers = false, every = false }) {
  const group = svg("g", { class: "tags" }), taken = [], high = size + 5;
  const [wide, tall] = room;
  const free = (x, y, w, h) => x >= 0 && y >= 0 && x + w <= wide && y + h <= tall && taken.every(([a, b, c, d]) => x >= a + c || a >= x + w || y >= b + d || b >= y + h);
  const onScreen = ([x, y]) => [x * scale + at[0], y * scale + at[1]];
  const named = new Set();
  let left = 0;
  const twins = twinsOf(facts);
  const labelled = objects(facts).filter(({ n, box }) => box && facts.box_labels && (n === chosen || !isFaint(facts, n)));
  const ofLabels = labelled.map(({ n, box }) => ({ n, box, id: facts.box_labels[n], name: (facts.kinds?.[n] ? `${facts.kinds[n]}: ` : "") + nameOf(facts.box_labels[n]) }));
  const predicted = predictedBoxes(facts).filter(({ fine }) => !fine).map(({ box, id, text }) => ({ n: -1, box, id, name: text }));
  const objectsSeen = [...ofLabels, ...predicted].map(({ box, ...one }) => {
    const [x1, y1] = onScreen(box), [x2, y2] = onScreen([box[2], box[3]]);
    // of a box that is partly in sight, the part in sight is named
    return { ...one, x1: Math.max(0, x1), y1: Math.max(0, y1), x2: Math.min(wide, x2), y2: Math.min(tall, y2) };
  }).filter(({ x1, y1, x2, y2 }) => x2 > x1 && y2 > y1);
  objectsSeen.sort((a, b) => (b.n === chosen) - (a.n === chosen) || (b.x2 - b.x1) * (b.y2 - b.y1) - (a.x2 - a.x1) * (a.y2 - a.y1));
  for (const { n, id, name, x1, y1, x2, y2 } of objectsSeen) {
    const short = name.length > 28 ? `${name.slice(0, 27)}…` : name, text = twins.has(n) ? `${twins.get(n)[0]} ${short}` : short, w = widthOf(text, size) + 8;
    const places = [[x1 - 1, y1 - high], [x1, y1], [x1 - 1, y2], [x1, y2 - high], [x2 - w + 1, y1 - high], [x2 - w, y1], [x2 - w + 1, y2], [x2 - w, y2 - high], [x2, y1], [x1 - w, y1]];
    // in a tile, a tag must leave most of its object in sight, and many objects of a class need no more than one
    const crowded = size < 12 && !every && (group.childElementCount >= most || w * high > 0.5 * (x2 - x1) * (y2 - y1) || (objectsSeen.length > most && named.has(name)));
    named.add(name);
    const place = crowded ? null : places.find(([x, y]) => free(x, y, w, high));
    if (!place) { left += 1; continue; }
    taken.push([place[0], place[1], w, high]);
    const color = colorOf(id);
    const tag = svg("g", { class: "tag", "data-n": n }, svg("rect", { x: place[0], y: place[1], width: w, height: high, rx: 3, fill: color, stroke: "#000", "stroke-opacity": 0.55 }), Object.assign(svg("text", { x: place[0] + 4, y: place[1] + size + 0.5, "font-size": size, fill: inkOn(color) }), { textContent: text }));
    group.append(tag);
  }
  if (numbers) left += numbersOf(facts, group, free, taken, onScreen);
  return [group, left];
}

function numbersOf(facts, group, free, taken, onScreen) {
  let left = 0;
  const visible = (facts.keypoints ?? []).filter((_, n) => isDrawn(facts, n) && !isFaint(facts, n));
  for (const points of [facts.landmarks ?? [], ...visible]) {
    points.forEach((point, number) => {
      if (!known(point) || point[2] === 0) return;
      const [x, y] = onScreen(point), text = String(number + 1), w = widthOf(text, 11) + 4;
      const place = [[x + 4, y - 15], [x + 4, y + 2], [x - 4 - w, y - 15], [x - 4 - w, y + 2]].find(([a, b]) => free(a, b, w, 13));
      if (!place) { left += 1; return; }
      taken.push([...place, w, 13]);
      group.append(Object.assign(svg("text", { class: "number", x: place[0] + 2, y: place[1] + 10.5, "font-size": 11 }), { textContent: text }));
    });
  }
  return left;
}

// The drawing over a small picture that is fitted into `room` = [width, height] pixels of the screen.
export function marks(facts, { room = null, every = false } = {}) {
  const { width, height } = facts;
  const over = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "xMidYMid meet", "aria-hidden": "true" });
  const scale = room ? Math.min(room[0] / width, room[1] / height) : 160 / Math.max(width, height);
  over.append(shapes(facts, { scale, width: 1.6 }));
  if (room && (facts.boxes?.length || predictedBoxes(facts).length) && facts.box === undefined) {
    const [named] = tags(facts, { scale, room: [width * scale, height * scale], size: 10, most: 6, every });
    named.setAttribute("transform", `scale(${1 / scale})`);
    over.append(named);
  }
  return over;
}

export function picture(facts, options) {
  const frame = element("div", { class: "picture" });
  if (facts.picture) {
    const image = element("img", { src: facts.picture, alt: "", decoding: "async", draggable: "false" });
    if (Math.max(facts.width, facts.height) <= 96) image.className = "tiny";
    const others = partsShown(facts, "beside").slice(0, 1).map(({ name, picture: src }) => element("img", { class: "other", src, alt: name }));
    frame.append(image, ...others, marks(facts, options));
  } else if (facts.error) {
    frame.append(element("div", { class: "broken" }, facts.error));
  }
  return frame;
}

// The classes; where there is none, the value, the text or the name of the file.
export function caption(facts) {
  const made = element("div", { class: "caption" });
  const ids = facts.label === null || facts.label === undefined ? [] : [facts.label];
  for (const id of facts.box_labels ?? []) if (!ids.includes(id)) ids.push(id);
  ids.sort((a, b) => drawn.focus.has(b) - drawn.focus.has(a));
  for (const id of ids.slice(0, 4)) made.append(dot(id), nameOf(id));
  if (ids.length > 4) made.append(` +${ids.length - 4}`);
  if (!ids.length) made.append(facts.value ?? textsOf(facts)[0]?.[1] ?? facts.file ?? facts.source?.split("/").pop() ?? facts.key ?? "");
  made.append(...predictedLabels(facts));
  return made;
}
