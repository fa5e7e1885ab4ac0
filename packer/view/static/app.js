// Tabs, filters and keys; each part of the page is a module of its own.
import { ask, complain, element, nameOf, names } from "./draw.js";
import { Grid } from "./grid.js";
import { Detail } from "./detail.js";
import { Loop } from "./loop.js";
import { charts } from "./charts.js";

const $ = (id) => document.getElementById(id);
const TABS = ["grid", "loop", "charts", "rejected"];
let facts, tab = "grid";
const seen = new Set(["grid"]);
const detail = new Detail();
const loop = new Loop((record) => detail.show(record, null));
const grid = new Grid($("scroller"), $("canvas"), { open: openAt, counted });

function query() {
  const given = { sort: $("sort").value };
  if ($("crops").checked) given.crops = 1;
  for (const id of ["text", "class", "min", "max"]) if ($(id).value !== "") given[id] = $(id).value;
  return given;
}

function counted(count) {
  if ($("crops").checked) { $("count").textContent = `${count.toLocaleString("en")} ${count === 1 ? "box" : "boxes"}`; return; }
  const records = `${facts.records.toLocaleString("en")} ${facts.records === 1 ? "record" : "records"}`;
  $("count").textContent = count === facts.records ? records : `${count.toLocaleString("en")} of ${records}`;
}

async function openAt(place) {
  try {
    const { record, box } = await ask("place", { ...query(), at: place });
    detail.show(record, move, box);
  } catch (error) { complain(error); }
}

function move(by) {
  const before = grid.at;
  grid.select(grid.at + by);
  if (grid.at !== before) openAt(grid.at);
}

async function choose(name) {
  tab = name;
  for (const other of TABS) {
    $(`tab-${other}`).hidden = other !== name;
    document.querySelector(`[data-tab=${other}]`).setAttribute("aria-selected", other === name);
  }
  complain(null);
  if (name === "grid") { grid.measure(); $("scroller").focus(); return; }
  if (seen.has(name)) return;
  seen.add(name);
  try {
    if (name === "loop") await loop.show();
    if (name === "charts") $("charts").replaceChildren(...charts(await ask("charts"), ofClass));
    if (name === "rejected") rejected(await ask("rejected"));
  } catch (error) { seen.delete(name); complain(error); }
}

function ofClass(id) { $("class").value = String(id); choose("grid"); grid.show(query()); }

function rejected({ total, rejected: rows, notes }) {
  const parts = notes.map((note) => element("p", { class: "note" }, note));
  if (!total) parts.push(element("p", {}, "No input was rejected."));
  else {
    const body = element("tbody");
    for (const row of rows) body.append(element("tr", {}, element("td", {}, row.path), element("td", {}, row.reason), element("td", {}, row.problem)));
    const head = element("thead", {}, element("tr", {}, ...["input", "kind", "why"].map((text) => element("th", {}, text))));
    const many = total > rows.length ? `, the first ${rows.length}` : "";
    parts.push(element("p", { class: "note" }, `${total.toLocaleString("en")} inputs are not in the pack${many}`), element("table", {}, head, body));
  }
  $("rejected").replaceChildren(...parts);
}

const KEYS = {
  ArrowRight: () => grid.at + 1, ArrowLeft: () => grid.at - 1,
  ArrowDown: () => grid.at + grid.columns, ArrowUp: () => grid.at - grid.columns,
  PageDown: () => grid.at + grid.page(), PageUp: () => grid.at - grid.page(),
  Home: () => 0, End: () => grid.count - 1,
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input:not([type=checkbox]), select");
  if (detail.isOpen) {
    if (event.key === "ArrowRight" || event.key === "ArrowDown") detail.step?.(1);
    else if (event.key === "ArrowLeft" || event.key === "ArrowUp") detail.step?.(-1);
    else return; // Escape closes a dialog by itself
    event.preventDefault();
    return;
  }
  if (event.key === "Escape" && typing) {
    if (event.target.id === "text" && event.target.value) { event.target.value = ""; grid.show(query()); }
    event.target.blur(); if (tab === "grid") $("scroller").focus();
    event.preventDefault();
  } else if (event.key === "/" && !typing) {
    choose("grid"); $("text").focus(); $("text").select(); event.preventDefault();
  } else if (typing) {
    if (event.target.id === "text" && (event.key === "Enter" || event.key === "ArrowDown")) { $("scroller").focus(); event.preventDefault(); }
  } else if (tab === "grid" && KEYS[event.key]) {
    grid.select(KEYS[event.key]()); event.preventDefault();
  } else if (tab === "grid" && event.key === "Enter" && grid.count && !event.target.matches("button")) {
    openAt(grid.at); event.preventDefault();
  } else if (tab === "loop" && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
    loop.step(event.key === "ArrowRight" ? 1 : -1); event.preventDefault();
  }
});

let typed;
$("text").addEventListener("input", () => { clearTimeout(typed); typed = setTimeout(() => grid.show(query()), 120); });
for (const id of ["class", "min", "max", "sort", "crops"]) $(id).addEventListener("change", () => grid.show(query()));
$("filter").addEventListener("submit", (event) => event.preventDefault());
$("size").addEventListener("change", () => grid.resize(Number($("size").value)));
$("marks").addEventListener("change", () => document.body.classList.toggle("no-marks", !$("marks").checked));
for (const button of document.querySelectorAll("[data-tab]")) button.addEventListener("click", () => choose(button.dataset.tab));

async function begin() {
  try { facts = await ask("pack"); } catch (error) { complain(error); return; }
  names.classes = facts.classes;
  document.title = `${facts.name} - packer view`;
  $("name").textContent = facts.name; $("name").title = facts.path;
  const shape = facts.shape ? `${facts.shape[1]} x ${facts.shape[0]}` : "different sizes";
  $("about").textContent = `${facts.container}, ${facts.encoding}, ${shape}, ${facts.size}`;
  const boxes = facts.fields.includes("boxes");
  for (const one of document.querySelectorAll(".boxes-only")) one.hidden = !boxes;
  for (const one of document.querySelectorAll(".sizes-only")) one.hidden = Boolean(facts.shape); // all images have one size
  facts.classes.forEach((name, id) => $("class").append(element("option", { value: id }, nameOf(id))));
  if (facts.classes.length) $("class").append(element("option", { value: -1 }, "(without class)"));
  else $("class").parentElement.hidden = true;
  if (facts.rejected) document.querySelector("[data-tab=rejected]").textContent = `Rejected (${facts.rejected.toLocaleString("en")})`;
  // an image smaller than the usual crop would only be blown up
  if (facts.shape) $("loop-side").value = Math.min(224, facts.shape[0], facts.shape[1]);
  await grid.show(query());
  $("scroller").focus();
}

begin();
