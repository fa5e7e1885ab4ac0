// Predictions over the labels: dashed boxes with their scores, the predicted class of an image, and what is shown of them.
import { colorOf, drawn, element, isFine, svg } from "./draw.js";
import { bind, declare, get, onchange, pack, set } from "./state.js";

declare({ predicted: [], confidence: 0.25, iou: 0.5 });

const isShown = ({ name }) => drawn.predicted.has(name);

// The predicted boxes of a record that are drawn: { box, id, text }.
export function predictedBoxes(facts) {
  const shown = (facts.predictions ?? []).filter((one) => one.boxes && isShown(one));
  return shown.flatMap(({ boxes, labels, said, scores, kinds }) => boxes.flatMap((box, n) => {
    if (scores[n] < drawn.confidence || drawn.hidden.has(labels[n])) return [];
    return [{ box, id: labels[n], text: `${said[n]} ${scores[n].toFixed(2)}${kinds ? `: ${kinds[n]}` : ""}`, fine: isFine(kinds?.[n]) }];
  }));
}

export function predictedShapes(facts, width) {
  const line = { fill: "none", "vector-effect": "non-scaling-stroke", "stroke-linejoin": "round" };
  return predictedBoxes(facts).map(({ box, id, text, fine }) => {
    const place = { x: box[0], y: box[1], width: Math.max(0, box[2] - box[0]), height: Math.max(0, box[3] - box[1]) };
    const one = svg("g", { class: fine ? "predicted faint" : "predicted" }, svg("rect", { ...place, ...line, stroke: "#000", "stroke-width": width + 1.6, "stroke-opacity": 0.7 }));
    one.append(svg("rect", { ...place, ...line, class: "predicted-box", stroke: "#fff", "stroke-width": width, "stroke-dasharray": "7 5" }));
    one.append(svg("rect", { ...place, ...line, stroke: colorOf(id), "stroke-width": width, "stroke-dasharray": "7 5", "stroke-dashoffset": 6 }));
    one.append(Object.assign(svg("title"), { textContent: text }));
    return one;
  });
}

// The predicted class of an image, for its caption: with a cross if the label is another.
export function predictedLabels(facts) {
  return (facts.predictions ?? []).filter((one) => one.said && !one.boxes && isShown(one)).map(({ label, said, score }) => {
    const wrong = facts.label !== null && facts.label !== undefined && facts.label !== label;
    return element("span", { class: wrong ? "said wrong" : "said" }, ` ${wrong ? "✗" : "✓"} ${said} ${score.toFixed(2)}`);
  });
}

// Rows for the fields of a record.
export function predictedRows(facts) {
  return (facts.predictions ?? []).map(({ name, boxes, said, score }) => [name, boxes ? `${boxes.length} boxes` : `${said} ${score.toFixed(4)}`]);
}

// The controls, to stand in several places; none without predictions.
export function predictionControls() {
  const named = (pack.predictions ?? []).filter(({ kind }) => kind !== "mask");
  if (!named.length) return "";
  const boxes = named.some(({ kind }) => kind === "boxes"), made = element("span", { class: "overlays", role: "group", "aria-label": "predictions" });
  for (const { name } of named) {
    const shown = element("input", { type: "checkbox" });
    shown.addEventListener("change", () => {
      const others = get("predicted").filter((other) => other !== name);
      set({ predicted: shown.checked ? [...others, name] : others }, { replace: true });
    });
    const show = () => { shown.checked = get("predicted").includes(name); };
    onchange(["predicted"], show); show();
    made.append(element("label", {}, shown, ` ${name}`));
  }
  if (boxes) made.append(confidenceSlider());
  return made;
}

export function confidenceSlider() {
  const slider = element("input", { type: "range", min: 0, max: 1, step: 0.01, "aria-label": "least confidence" }), said = element("output", { class: "confidence" });
  bind(slider, "confidence", { replace: true });
  const show = () => { said.textContent = `≥ ${Number(slider.value).toFixed(2)}`; };
  slider.addEventListener("input", () => { drawn.confidence = Number(slider.value); show(); redraw(); });
  onchange(["confidence"], show); show();
  return element("label", { title: "least confidence" }, slider, said);
}

let redraw = () => {};

// Follow the address; `changed` is called when others are drawn.
export function followPredictions(changed) {
  const first = (pack.predictions ?? []).find(({ kind }) => kind !== "mask");
  declare({ predicted: first ? [first.name] : [] });
  const look = () => { drawn.predicted = new Set(get("predicted")); drawn.confidence = get("confidence"); };
  redraw = changed;
  onchange(["predicted", "confidence"], () => { look(); changed(); });
  look();
}
