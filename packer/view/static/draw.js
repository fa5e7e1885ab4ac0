// Draws annotations over a picture, and makes elements. Text from data goes in as text, never as HTML.
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

// the same as color_of in packer/view/export.py
export function colorOf(id) {
  if (id === null || id === undefined || id < 0) return "hsl(0 0% 60%)";
  return `hsl(${((id * 137.508 + 205) % 360).toFixed(0)} 75% 52%)`;
}

export const names = { classes: [] };
export const nameOf = (id) => names.classes[id] ?? String(id);

export function dot(id) {
  const made = element("span", { class: "dot" });
  made.style.background = colorOf(id);
  return made;
}

const known = (point) => point[0] !== null && point[1] !== null;

// `tagged`: class names beside the boxes; `chosen`: the number of a box that stands out
export function marks(facts, { tagged = false, chosen = null } = {}) {
  const { width, height } = facts;
  const over = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "xMidYMid meet", "aria-hidden": "true" });
  const line = (n) => ({
    fill: n === chosen ? colorOf(facts.box_labels?.[n]) : "none", "fill-opacity": 0.3,
    stroke: colorOf(facts.box_labels?.[n]), "stroke-width": tagged ? 2.5 : 1.8, "vector-effect": "non-scaling-stroke",
  });
  (facts.polygons ?? []).forEach((points, n) => {
    if (points.length) over.append(svg("polygon", { class: "outline", points: points.filter(known).join(" "), ...line(n), "fill-opacity": 0.25, fill: colorOf(facts.box_labels?.[n]) }));
  });
  (facts.boxes ?? []).forEach((box, n) => {
    if (box.includes(null)) return;
    const [x1, y1, x2, y2] = box;
    over.append(svg("rect", { class: "box", x: x1, y: y1, width: Math.max(0, x2 - x1), height: Math.max(0, y2 - y1), ...line(n) }));
    if (tagged && facts.box_labels) {
      const size = Math.max(width, height) / 45;
      const text = svg("text", { x: x1 + size * 0.2, y: y1 > size * 1.2 ? y1 - size * 0.3 : y1 + size, "font-size": size, fill: "#fff", stroke: "#000", "stroke-width": size / 5, "paint-order": "stroke" });
      text.textContent = nameOf(facts.box_labels[n]);
      over.append(text);
    }
  });
  const radius = Math.max(width, height) / (tagged ? 130 : 70);
  const dots = [...(facts.landmarks ?? []), ...(facts.keypoints ?? []).flat().filter((point) => point[2] !== 0)];
  dots.forEach((point, n) => {
    if (!known(point)) return;
    const made = svg("circle", { class: "landmark", cx: point[0], cy: point[1], r: radius, fill: "#ff2f6d", stroke: "#fff", "stroke-width": 1, "vector-effect": "non-scaling-stroke" });
    made.append(Object.assign(svg("title"), { textContent: String(n + 1) }));
    over.append(made);
  });
  return over;
}

export function picture(facts, options) {
  const frame = element("div", { class: "picture" });
  if (facts.picture) {
    const image = element("img", { src: facts.picture, alt: "", decoding: "async", draggable: "false" });
    if (Math.max(facts.width, facts.height) <= 96) image.className = "tiny";
    frame.append(image, marks(facts, options));
  } else if (facts.error) {
    frame.append(element("div", { class: "broken" }, facts.error));
  }
  return frame;
}

export function caption(facts) {
  const made = element("div", { class: "caption" });
  const ids = facts.label === null || facts.label === undefined ? [] : [facts.label];
  for (const id of facts.box_labels ?? []) if (!ids.includes(id)) ids.push(id);
  for (const id of ids.slice(0, 4)) made.append(dot(id), nameOf(id));
  if (!ids.length) made.append(facts.key ?? "");
  return made;
}
