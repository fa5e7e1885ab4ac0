// The window of images of 16 bits (which values are black and white), and that of maps (at which values their colors end).
import { element } from "./draw.js";
import { declare, get, onchange, pack, set } from "./state.js";

declare({ window: "", colors: "" });
const CHOICES = {
  window: { label: "window", "": "1st to 99th percentile", "min..max": "darkest to brightest", "0..": "0 to brightest" },
  colors: { label: "colors", "": "1st to 99th percentile", "min..max": "lowest to highest" },
};
const FIXED = "fixed", WAIT_MS = 60;
const known = { window: [0, 65535], colors: [0, 1] }; // the ends that were shown last

export const isWindow = (name) => name in CHOICES;
const has = (name) => (name === "window" ? pack.deep : pack.maps.length > 0);
export const windowsAsked = () => Object.fromEntries(Object.keys(CHOICES).filter((name) => get(name)).map((name) => [name, get(name)]));
export function onwindow(listener) { onchange(Object.keys(CHOICES), listener); }

const endsOf = (text) => (text in CHOICES.window ? null : text.split("..").map((end) => (end === "" ? "" : Number(end))));
const put = (name, [low, high]) => { if (low === "" || high === "" || low < high) set({ [name]: `${low}..${high}` }, { replace: true }); };

// A list of the ways, and fields for two fixed values; "" for a pack that has nothing to choose.
export function windowControls() {
  const shown = Object.keys(CHOICES).filter(has);
  return shown.length ? element("span", { class: "windows" }, ...shown.map(control)) : "";
}

function control(name) {
  const { label, ...ways } = CHOICES[name], which = element("select", { "aria-label": label });
  for (const [value, text] of Object.entries({ ...ways, [FIXED]: "fixed values" })) which.append(element("option", { value }, text));
  const fields = ["lowest", "highest"].map((end) => element("input", { type: "number", step: "any", "aria-label": `${end} value of ${label}` }));
  which.addEventListener("change", () => { if (which.value === FIXED) put(name, known[name]); else set({ [name]: which.value }, { replace: true }); });
  for (const field of fields) field.addEventListener("change", () => put(name, fields.map(({ value }) => (value === "" ? "" : Number(value)))));
  const look = () => {
    const ends = endsOf(get(name));
    which.value = ends ? FIXED : get(name);
    fields.forEach((field, n) => { field.hidden = !ends; field.value = ends?.[n] ?? ""; });
  };
  onchange([name], look);
  look();
  return element("label", {}, `${label} `, which, ...fields);
}

// Sliders for the open record: black and white among the values that it has.
export class Levels {
  constructor() {
    this.ends = ["black", "white"].map((end) => element("input", { type: "range", "aria-label": `value that is ${end}` }));
    this.text = element("output", {});
    this.root = element("span", { class: "levels", role: "group", "aria-label": "window", hidden: "" }, ...this.ends, this.text);
    for (const [n, slider] of this.ends.entries()) slider.addEventListener("input", () => this.move(n));
  }

  // `levels`: of the server; undefined for 8 bits
  show(levels) {
    this.root.hidden = !levels;
    if (!levels) return;
    const [low, high] = known.window = levels.ends.map(Math.round);
    for (const slider of this.ends) { slider.min = Math.min(low, levels.lowest); slider.max = Math.max(high, levels.highest); }
    if (document.activeElement !== this.ends[0]) this.ends[0].value = low;
    if (document.activeElement !== this.ends[1]) this.ends[1].value = high;
    this.text.textContent = `${low.toLocaleString("en")} to ${high.toLocaleString("en")}`;
  }

  move(n) {
    const [low, high] = this.ends.map(({ value }) => Number(value));
    if (low >= high) this.ends[n].value = n ? low + 1 : high - 1;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => put("window", this.ends.map(({ value }) => Number(value))), WAIT_MS);
  }
}
