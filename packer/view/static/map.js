// The tab of the map: records in two dimensions by an embedding; what is drawn around is selected.
import { colorOf, element, nameOf, picture, caption } from "./draw.js";
import { showRecords } from "./filters.js";
import { markAll } from "./marked.js";
import { Scatter } from "./scatter.js";
import { ask, bytes, complain } from "./server.js";
import { bind, declare, get, onchange, pack, set } from "./state.js";

declare({ embedding: "", method: "pca", color: "", only: [], area: "" });
const NOWHERE = 65535, MOST_MARKED = 100_000, MOST_ROWS = 300, SHOWN = 12, AGAIN_MS = 300, HOVER_MS = 60;
const METHODS = { pca: "PCA", umap: "UMAP" };
const many = (count, one = "record") => `${count.toLocaleString("en")} ${count === 1 ? one : `${one}s`}`;
const $ = (id) => document.getElementById(id);
let scatter, facts = {}, codes = new Uint16Array(), wish = 0, drawn = "", hovering, tips = new Map();

const embedding = () => (pack.embeddings.some(({ name }) => name === get("embedding")) ? get("embedding") : pack.embeddings[0].name);
const color = () => facts.colors?.find(({ name }) => name === get("color")) ?? facts.colors?.[0];
const asked = () => ({ embedding: embedding(), method: get("method") });

function button(text, work, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", work);
  return made;
}

// Dark blue to yellow, as of viridis.
const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
function shade(share) {
  const at = Math.min(3, Math.floor(share * 4)), part = share * 4 - at;
  return VIRIDIS[at].map((low, n) => Math.round(low + (VIRIDIS[at + 1][n] - low) * part));
}

const painter = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
function rgb(style) {
  painter.fillStyle = style; painter.fillRect(0, 0, 1, 1);
  return painter.getImageData(0, 0, 1, 1).data;
}
const GRAY = [150, 150, 150];
const colored = (code) => {
  if (code === NOWHERE || !color()) return GRAY;
  if (color().kind === "value") return shade(code / 255);
  return color().kind === "tag" && !code ? GRAY : rgb(colorOf(code));
};
const named = (code) => {
  if (code === NOWHERE) return color()?.kind === "value" ? "without" : "without class";
  return { class: () => nameOf(code), pack: () => pack.packs[code].name, tag: () => (code ? "with it" : "without it") }[color().kind]?.() ?? "";
};

// Wait until the server has computed something, and say how far it is.
async function awaited(what, given, said, current) {
  for (let start = 1; ; start = 0) {
    const found = await ask(what, { ...given, ...(start ? { start } : {}) });
    if (!current()) return null;
    if (found.error) throw new Error(found.error);
    if (found.ready) return found;
    const far = found.images ? [element("progress", { max: found.images, value: found.done, "aria-label": found.stage }), ` ${found.stage}: ${found.done.toLocaleString("en")} of ${found.images.toLocaleString("en")}`] : [element("progress", { "aria-label": found.stage }), ` ${found.stage} ...`];
    said.replaceChildren(...far);
    await new Promise((done) => { setTimeout(done, AGAIN_MS); });
  }
}

async function load(fetching = false) {
  const mine = (wish += 1), current = () => mine === wish, said = $("map-said");
  const { fetched } = pack.embeddings.find(({ name }) => name === embedding());
  if (fetched && !fetching && !(await ask("map", asked())).begun) {
    said.replaceChildren(element("span", {}, `The map needs ${fetched} of this pack's URL. `), button("Fetch it", () => load(true)));
    return;
  }
  try {
    const found = await awaited("map", asked(), said, current);
    if (!found) return;
    const places = new Uint16Array(await bytes("places.bin", asked()));
    if (!current()) return;
    facts = found;
    scatter.place(places, facts.view);
    colors();
    await paint();
    drawn = JSON.stringify(asked());
    $("map").dataset.drawn = drawn;
    said.textContent = `${many(facts.shown)}${facts.left_out ? `; ${facts.left_out.toLocaleString("en")} left out: vectors of zeros, or of numbers that are not finite` : ""}`;
    complain(null);
  } catch (error) {
    if (current()) { said.textContent = error.message; facts = {}; drawn = ""; scatter.place(new Uint16Array(0), null); $("map-legend").replaceChildren(); } // not the map by another method
  }
  await area();
}

function colors() {
  $("map-color").replaceChildren(...facts.colors.map(({ name }) => element("option", { value: name }, name)));
  $("map-color").parentElement.hidden = !facts.colors.length;
  if (color()) $("map-color").value = color().name;
}

async function paint() {
  const mine = color(), found = mine ? new Uint16Array(await bytes("colors.bin", { color: mine.name })) : new Uint16Array(pack.records);
  if (mine !== color()) return; // another was chosen meanwhile
  codes = found;
  scatter.paint(codes, colored);
  legend(); light();
}

function light() {
  const only = color()?.kind === "value" ? [] : get("only").map(Number);
  scatter.light(only.length ? only.map((code) => (code < 0 ? NOWHERE : code)) : null);
  for (const row of $("map-legend").querySelectorAll("button")) row.setAttribute("aria-pressed", get("only").includes(row.dataset.code));
}

function legend() {
  const box = $("map-legend");
  if (!color()) { box.replaceChildren(); return; }
  if (color().kind === "value") {
    const bar = element("canvas", { width: 256, height: 1, class: "ramp", "aria-hidden": "true" }), context = bar.getContext("2d");
    for (let n = 0; n < 256; n += 1) { context.fillStyle = `rgb(${shade(n / 255).join(" ")})`; context.fillRect(n, 0, 1, 1); }
    const [low, high] = color().ends.map((end) => String(Number(end.toPrecision(3))));
    box.replaceChildren(bar, element("div", { class: "ends" }, element("span", {}, low), element("span", {}, high)));
    return;
  }
  const counts = new Map();
  for (const code of codes) counts.set(code, (counts.get(code) ?? 0) + 1);
  const rows = [...counts].sort((a, b) => b[1] - a[1]);
  box.replaceChildren(...rows.slice(0, MOST_ROWS).map(([code, count]) => {
    const spot = element("span", { class: "dot" }), id = String(code === NOWHERE ? -1 : code);
    spot.style.background = `rgb(${[...colored(code)].slice(0, 3).join(" ")})`;
    const toggle = () => set({ only: get("only").includes(id) ? get("only").filter((other) => other !== id) : [...get("only"), id] }, { replace: true });
    const row = button("", toggle, { "data-code": id, title: "only these; press again for all" });
    row.append(spot, named(code), element("small", {}, ` ${count.toLocaleString("en")}`));
    return row;
  }));
  if (rows.length > MOST_ROWS) box.append(element("small", {}, `and ${rows.length - MOST_ROWS} more`));
}

// The records that are drawn around, of the classes that are lit.
function chosen() {
  const filters = { set: [`area:${embedding()}.${get("method")}.${get("area")}`] };
  if (color()?.kind === "class" && get("only").length) filters.class = get("only");
  if (color()?.kind === "pack" && get("only").length === 1) filters.set.push(`pack:${get("only")[0]}`);
  return filters;
}

async function area() {
  const text = get("area"), box = $("map-chosen"), mine = wish;
  scatter.corners = text ? text.match(/.{8}/g)?.map((one) => [0, 4].map((at) => parseInt(one.slice(at, at + 4), 16))) ?? null : null;
  scatter.schedule();
  if (!text || !facts.ready) {
    box.replaceChildren(element("p", { class: "note" }, "Drag with Shift, or choose Select, to draw around records; s selects what is in sight."));
    return;
  }
  try {
    const filters = chosen(), { count, tiles } = await ask("tiles", { ...filters, start: 0, count: SHOWN, side: 80 });
    if (mine !== wish || text !== get("area")) return;
    const tooMany = count > MOST_MARKED ? { disabled: "", title: `at most ${many(MOST_MARKED)} can be marked at once` } : {};
    const query = Object.fromEntries(new URLSearchParams(filters));
    box.replaceChildren(element("h3", {}, `${many(count)} selected`), element("div", { class: "thumbs" }, ...tiles.map((tile) => thumb(tile))),
      button("Show in Records", () => showRecords(filters)), button("Mark all", () => markAll(query, count), tooMany), button("Clear", () => set({ area: "" })));
  } catch (error) { box.replaceChildren(element("p", { class: "note" }, error.message)); }
}

export function thumb(tile, note = "") {
  const made = button("", () => set({ record: tile.record }), { class: "thumb", title: tile.file ?? tile.key, "aria-label": `record ${tile.key}${note ? `, ${note}` : ""}` });
  made.append(picture(tile));
  if (note) made.append(element("small", {}, note));
  return made;
}

// What the neighbors of all records say: outliers, and labels that they contradict.
async function look(begin) {
  const box = $("map-look"), given = { embedding: embedding() }, mine = wish, said = element("div", { role: "status" });
  const start = button("Look for outliers and wrong labels", () => look(true));
  const about = element("p", { class: "note" }, "Compares each record with its nearest ones: minutes for a million.");
  try {
    if (!begin && !(await ask("neighborhoods", given)).begun) { box.replaceChildren(start, about); return; }
    box.replaceChildren(said);
    const found = await awaited("neighborhoods", given, said, () => mine === wish);
    if (!found) return;
    const links = found.kinds.map((kind) => button(kind.startsWith("outlier") ? "Outliers" : "Labels that neighbors contradict", () => showRecords({ set: [`problem:${kind}`], sort: "set" })));
    if (links.length) links.push(button("Explained in Problems", () => set({ tab: "problems" })));
    box.replaceChildren(...(links.length ? links : [element("p", {}, "No outliers, no contradicted labels.")]), ...found.notes.map((note) => element("p", { class: "note" }, note)));
  } catch (error) { box.replaceChildren(element("p", { class: "note" }, error.message), start); }
}

function hovered(record, x, y) {
  const tip = $("map-tip");
  clearTimeout(hovering);
  if (record < 0) { tip.hidden = true; return; }
  if (tip.dataset.record !== String(record)) tip.hidden = true;
  tip.style.left = `${Math.min(x + 14, $("map").clientWidth - 160)}px`; tip.style.top = `${Math.max(0, Math.min(y + 14, $("map").clientHeight - 190))}px`;
  hovering = setTimeout(async () => {
    try {
      if (!tips.has(record)) tips.set(record, await ask("tile", { record, side: 160 }));
      if (tips.size > 200) tips = new Map([...tips].slice(-100));
      const tile = tips.get(record);
      tip.dataset.record = record; tip.hidden = false;
      tip.replaceChildren(picture(tile), element("div", { class: "caption" }, tile.file ?? tile.key), caption(tile));
    } catch (error) { complain(error); }
  }, HOVER_MS);
}

function setUp(panel) {
  const select = (id, name, options) => element("label", options.length > 1 ? {} : { hidden: "" }, `${name} `, element("select", { id }, ...options.map(([value, text]) => element("option", { value }, text))));
  const mode = (selecting) => { scatter.selecting = selecting; $("map").classList.toggle("selecting", selecting); $("map-move").setAttribute("aria-pressed", !selecting); $("map-select").setAttribute("aria-pressed", selecting); };
  const bar = element("form", { class: "bar", "aria-label": "map options" },
    select("map-embedding", "embedding", pack.embeddings.map(({ name }) => [name, name])), select("map-method", "by", Object.entries(METHODS)), select("map-color", "color", [["", ""], ["", ""]]),
    element("span", { class: "modes", role: "group", "aria-label": "a drag" }, button("Move", () => mode(false), { id: "map-move", "aria-pressed": true }), button("Select", () => mode(true), { id: "map-select", "aria-pressed": false, title: "draw around records; also with Shift" })),
    button("Fit", () => scatter.fit(), { title: "key 0" }), element("output", { id: "map-said" }));
  bar.addEventListener("submit", (event) => event.preventDefault());
  const canvas = element("canvas", { id: "map-canvas", tabindex: "0", role: "img", "aria-label": "map of the records; arrows move it, plus and minus zoom, 0 fits, s selects what is in sight" });
  const side = element("aside", { tabindex: "0", "aria-label": "selection and legend" }, element("div", { id: "map-chosen", role: "status" }), element("div", { id: "map-look" }), element("div", { id: "map-legend", class: "legend", role: "group", "aria-label": "colors" }));
  panel.replaceChildren(bar, element("div", { class: "map-and-side" }, element("div", { id: "map" }, canvas, element("div", { id: "map-tip", hidden: "" })), side));
  const hex = (value) => value.toString(16).padStart(4, "0");
  scatter = new Scatter(canvas, { hovered, picked: (record) => set({ record }), selected: (corners) => set({ area: corners ? corners.flat().map(hex).join("") : "" }) });
  canvas.scatter = scatter; // for whoever measures its frames
  bind($("map-embedding"), "embedding", { changed: (value) => ({ embedding: value, area: "" }) });
  bind($("map-method"), "method", { changed: (value) => ({ method: value, area: "" }) });
  $("map-embedding").value = embedding();
  $("map-color").addEventListener("change", () => set({ color: $("map-color").value, only: [] }));
  const shown = () => get("tab") === "map";
  onchange(["embedding", "method"], () => { if (shown()) { load(); look(false); } });
  onchange(["color"], () => { if (facts.ready) { colors(); paint().catch(complain); } });
  onchange(["only"], () => { light(); area(); });
  onchange(["area"], area);
}

export const tab = {
  id: "map",
  name: "Map",
  there: () => pack.embeddings.length > 0,
  async show(panel) {
    if (!scatter) setUp(panel);
    scatter.measure();
    if (drawn !== JSON.stringify(asked())) { const loaded = load(); look(false); await loaded; } // in this order: a new load ends what was asked before
  },
  focus() { $("map-canvas").focus(); },
  key: (event) => Boolean(scatter) && !event.target.closest("button, a, summary, aside") && scatter.key(event.key),
};
