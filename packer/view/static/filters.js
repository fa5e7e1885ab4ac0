// The filters and the order of the records: the bar, the chips of what is set, and what the server is asked.
import { dot, element, nameOf } from "./draw.js";
import { FIGURES, offerFigures } from "./figures.js";
import { short } from "./cards.js";
import { bind, declare, get, onchange, pack, reset, set } from "./state.js";
import { windowsAsked } from "./windows.js";

const $ = (id) => document.getElementById(id);
// ranges "from..to", by the server's name
const RANGES = {
  boxes: "boxes", box: "largest box, % of image", width: "width, px", height: "height, px", aspect: "width / height", square: "side of a square of its area, px", points: "landmarks", value: "value",
  box_width: "width of a box, px", box_height: "height of a box, px", box_area: "area of a box, px²", box_aspect: "width / height of a box", box_x: "center of a box, % from the left", box_y: "center of a box, % from the top",
};
const FILTERS = ["text", "class", "match", "not", "set", ...Object.keys(RANGES), ...FIGURES];
declare({ text: "", class: [], match: "any", not: [], set: [], sort: "packed", crops: false });
for (const name of [...Object.keys(RANGES), ...FIGURES]) declare({ [name]: "" });

// A pack may have several values in an image: those after the first are value1, value2, ...
export function declareValues() {
  for (let n = 1; n < pack.values; n += 1) { RANGES[`value${n}`] = `value ${n}`; FILTERS.push(`value${n}`); declare({ [`value${n}`]: "" }); }
}

let titles = {}; // of the sets, from the server
let rangeOf = "boxes";

// What the server is asked for: the filters that are set, and the order.
export function query() {
  const given = { sort: get("sort") };
  if (get("crops")) given.crops = 1;
  Object.assign(given, windowsAsked());
  for (const name of FILTERS) if (get(name).length) given[name] = get(name);
  return given;
}

// Show the records that match these filters only, for example {class: [3]} or {set: ["problem:2"]}.
export function showRecords(filters) {
  const sort = get("sort") === "set" ? "packed" : get("sort"); // that is the order of a set
  reset(FILTERS, { sort, ...filters, tab: "records", record: -1 });
}

export function leaveOut(name) { reset([name], {}, { replace: true }); }

export function clearFilters() { reset(FILTERS); }

// The filters that are set: {label, without: the changes that remove it}.
function active() {
  const found = [];
  const add = (label, without, color) => found.push({ label, without, color });
  if (get("text")) add(`“${get("text")}”`, { text: "" });
  for (const id of get("class")) {
    const known = Number(id) in pack.classes, name = known ? nameOf(Number(id)) : `class ${id} (not in this pack)`;
    add(id === "-1" ? "without class" : name, { class: get("class").filter((other) => other !== id) }, known ? Number(id) : undefined);
  }
  for (const id of get("not")) add(`not ${id === "-1" ? "without class" : nameOf(Number(id))}`, { not: get("not").filter((other) => other !== id) }, Number(id));
  for (const [name, title] of [...Object.entries(RANGES), ...pack.figures.map(({ name, title }) => [name, title])]) if (get(name)) add(rangeText(title, get(name)), { [name]: "" });
  for (const name of get("set")) add(titles[name] ?? name, { set: get("set").filter((other) => other !== name) });
  return found;
}

function rangeText(title, text) {
  if (!text.includes("..")) return `${title}: ${text}`;
  const [from, end] = text.split(".."), to = end.startsWith("<") ? `less than ${short(end.slice(1))}` : end;
  if (from === to) return `${title}: ${from}`;
  return to === "" ? `${title}: ${from} or more` : from === "" ? `${title}: ${end.startsWith("<") ? to : `${to} or less`}` : `${title}: ${from} to ${to}`;
}

function removers() {
  return active().map(({ label, without, color }) => {
    const chip = element("button", { type: "button", class: "chip", "aria-label": `remove filter ${label}`, title: "remove this filter" });
    if (color !== undefined && color >= 0) chip.append(dot(color));
    chip.append(element("span", {}, label), element("span", { class: "cross", "aria-hidden": "true" }, "✕"));
    chip.addEventListener("click", () => { set(without); ($("chips").querySelector("button") ?? $("scroller")).focus(); });
    return chip;
  });
}

function clearAll() {
  const made = element("button", { type: "button", class: "clear" }, "Clear all filters");
  made.addEventListener("click", () => { clearFilters(); $("scroller").focus(); });
  return made;
}

function draw() {
  const chips = removers(), classes = get("class").length;
  $("chips").replaceChildren(...chips, ...(chips.length > 1 ? [clearAll()] : []));
  $("chosen").hidden = !chips.length;
  $("filters-set").textContent = chips.length ? ` (${chips.length})` : "";
  $("pack").value = get("set").find((name) => name.startsWith("pack:")) ?? "";
  $("tagged").value = get("set").find((name) => name.startsWith("tagged:")) ?? "";
  $("match-of").hidden = classes < 2;
  $("sort").querySelector("[value=set]").hidden = !get("set").length && get("sort") !== "set";
  const [from, to] = get(rangeOf).includes("..") ? get(rangeOf).split("..") : ["", ""];
  $("range-from").value = from; $("range-to").value = to.replace("<", "");
  if (document.activeElement !== $("text")) $("text").value = get("text");
}

// Called with each first answer of the server.
export function counted(count, sets = {}) {
  const records = `${pack.records.toLocaleString("en")} ${pack.records === 1 ? "record" : "records"}`;
  if (get("crops")) $("count").textContent = `${count.toLocaleString("en")} ${count === 1 ? "box" : "boxes"}`;
  else $("count").textContent = count === pack.records ? records : `${count.toLocaleString("en")} of ${records}`;
  titles = { ...titles, ...sets };
  if (Object.keys(sets).length) draw();
  // the button that was pressed goes, or the search was left while it had no match
  const lost = document.activeElement === document.body || $("empty").contains(document.activeElement);
  $("empty").hidden = count > 0;
  $("scroller").hidden = count === 0;
  if (count > 0 && lost) $("scroller").focus();
  if (count > 0) return;
  const chips = removers(), what = get("crops") ? "box" : "record";
  if (!chips.length) $("empty").replaceChildren(element("p", {}, `The pack has no ${what}.`));
  else $("empty").replaceChildren(element("p", {}, `No ${what} matches. Remove a filter:`), element("div", { class: "chips" }, ...chips), clearAll());
}

function setRange() {
  const [from, to] = [$("range-from").value, $("range-to").value];
  set({ [rangeOf]: from === "" && to === "" ? "" : `${from}..${to}` });
}

// Set up the bar for this pack; `changed` is called when the filters or the order have changed.
export function setUp(changed) {
  pack.classes.forEach((name, id) => $("class").append(element("option", { value: id }, nameOf(id))));
  $("class").append(element("option", { value: -1 }, "(without class)"));
  const classed = pack.classes.length > 0 && ["label", "box_labels"].some((field) => pack.fields.includes(field)); // not of masks only
  $("class").parentElement.hidden = !classed;
  pack.packs?.forEach(({ name }, n) => $("pack").append(element("option", { value: `pack:${n}` }, name)));
  $("pack").parentElement.hidden = !(pack.packs?.length > 1);
  $("pack").addEventListener("change", () => set({ set: [...get("set").filter((name) => !name.startsWith("pack:")), $("pack").value].filter(Boolean) }));
  const boxes = pack.fields.includes("boxes"), values = pack.fields.includes("value");
  for (const one of document.querySelectorAll(".boxes-only")) one.hidden = !boxes;
  for (const one of document.querySelectorAll(".values-only")) one.hidden = !values;
  for (const one of document.querySelectorAll(".sizes-only")) one.hidden = Boolean(pack.shape); // all images have one size
  for (const [name, title] of Object.entries(RANGES)) {
    if (name.startsWith("box") ? boxes : name.startsWith("value") ? values : name === "points" ? pack.fields.includes("landmarks") : !pack.shape) $("range-of").append(element("option", { value: name }, title));
  }
  offerFigures($("sort"), $("range-of"));
  rangeOf = $("range-of").value || "width";
  $("range-of").parentElement.hidden = !$("range-of").options.length;

  let typed, typing = false;
  const type = () => { clearTimeout(typed); set({ text: $("text").value }, { replace: typing }); typing = true; };
  $("text").addEventListener("focus", () => { typing = false; });
  $("text").addEventListener("input", () => { clearTimeout(typed); typed = setTimeout(type, 120); });
  $("text").addEventListener("blur", () => { if ($("text").value !== get("text")) type(); });
  $("class").addEventListener("change", () => {
    const id = $("class").value;
    $("class").value = "";
    if (id && !get("class").includes(id)) set({ class: [...get("class"), id] });
  });
  $("not").append(...[...$("class").options].slice(1).map((option) => option.cloneNode(true)));
  $("not").parentElement.hidden = !classed;
  $("not").addEventListener("change", () => {
    const id = $("not").value;
    $("not").value = "";
    if (id && !get("not").includes(id)) set({ not: [...get("not"), id] });
  });
  $("range-of").addEventListener("change", () => { rangeOf = $("range-of").value; draw(); });
  for (const id of ["range-from", "range-to"]) $(id).addEventListener("change", setRange);
  bind($("match"), "match");
  bind($("sort"), "sort");
  bind($("crops"), "crops");
  $("filters-open").addEventListener("click", () => {
    const open = $("filter").classList.toggle("open");
    $("filters-open").setAttribute("aria-expanded", open);
  });
  $("filter").addEventListener("submit", (event) => event.preventDefault());
  onchange([...FILTERS, "sort", "crops"], () => { draw(); changed(); });
  draw();
}
