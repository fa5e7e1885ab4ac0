// The tab of records: the grid of all that match, and one record large.
import { ask, complain } from "./server.js";
import { counted, leaveOut, query, setUp } from "./filters.js";
import { Grid } from "./grid.js";
import { Detail } from "./detail.js";
import { legend, ofBoxes, ofOverlay, hideAtFirst, onhidden } from "./legend.js";
import { markForm, markKey, markRange } from "./marked.js";
import { controls, followOverlays, overlayKey } from "./overlays.js";
import { followPredictions, predictionControls } from "./predicted.js";
import { bind, declare, get, onchange, pack, set } from "./state.js";
import { current } from "./tabs.js";
import { tagForm, tagKey } from "./tags.js";
import { isWindow, onwindow, windowControls } from "./windows.js";

const $ = (id) => document.getElementById(id);
declare({ record: -1, object: -1, size: 160, labels: true, naming: "" });

const MOST_CLASSES = 300;
const NAMES = ["file", "path", "key"];
// The side of a tile: an address may hold any number.
const side = () => Math.max(80, Math.min(320, get("size")));

const detail = new Detail();
const grid = new Grid($("scroller"), $("canvas"), { open: openAt, counted, marked: markRange, refused });

// A filter or an order of the address that the server does not know: show the records without it, and say so.
function refused(error) {
  if (!(error.where in query())) return false;
  const value = get(error.where);
  grid.warning = new Error(`Left out of the address: ${error.where}=${value}, which ${error.message.replace(`${error.where}: `, "")}`);
  leaveOut(error.where);
  if (isWindow(error.where)) grid.show(query()); // no filter: what is shown is only drawn again
  return true;
}

async function openAt(place, { replace = false } = {}) {
  try {
    const { record, box = -1 } = await ask("place", { ...query(), at: place });
    if (record !== null) set({ record, object: box }, { replace });
  } catch (error) { complain(error); }
}

let located = Promise.resolve();

async function move(by) {
  await located; // a key may be faster than the answer
  const before = grid.at;
  grid.select(grid.at + by);
  if (grid.at !== before) openAt(grid.at, { replace: true });
}

// Show the record of the address, or none. It may have been opened elsewhere: its place in the grid is looked up.
function showRecord() {
  const record = get("record"), object = get("object");
  if (record < 0) { if (detail.isOpen) detail.close(); return; }
  if (record >= pack.records || !Number.isInteger(record)) { // of an address that was typed, or of another pack
    set({ record: -1, object: -1 }, { replace: true });
    complain(new Error(`The pack has no record ${record}: its records are 0 to ${pack.records - 1}.`));
    return;
  }
  const among = current() === tab;
  detail.show(record, among ? move : null, object);
  markForm(record);
  tagForm(record);
  if (among) located = locate(record, object);
}

async function locate(record, object) {
  try {
    const { at } = await ask("place", { ...query(), record, ...(object < 0 ? {} : { object }) });
    if (record === get("record") && object === get("object") && at !== null) grid.select(at);
  } catch (error) { complain(error); }
}

const KEYS = {
  ArrowRight: () => grid.at + 1, ArrowLeft: () => grid.at - 1,
  ArrowDown: () => grid.at + grid.columns, ArrowUp: () => grid.at - grid.columns,
  PageDown: () => grid.at + grid.page(), PageUp: () => grid.at - grid.page(),
  Home: () => 0, End: () => grid.count - 1,
};

export const tab = {
  id: "records",
  name: "Records",
  async show() {
    grid.measure();
    await (this.ready ??= this.setUp());
  },
  async setUp() {
    setUp(() => grid.show(query()));
    bind($("size"), "size", { replace: true });
    bind($("labels"), "labels", { replace: true });
    bind($("naming"), "naming", { replace: true });
    const named = () => grid.name(NAMES.includes(get("naming")) ? get("naming") : "");
    onchange(["naming"], named); named();
    const look = () => document.body.classList.toggle("no-marks", !get("labels"));
    onchange(["labels"], look); look();
    const rows = pack.fields.includes("boxes") ? ofBoxes(new Map(pack.classes.slice(0, MOST_CLASSES).map((_, id) => [id, null]))) : [];
    for (const name of pack.overlays) if (pack.masks[name]) rows.push(...ofOverlay(name, pack.masks[name]).slice(0, MOST_CLASSES));
    const switches = legend(rows);
    $("legend").append(switches);
    $("legend").hidden = !rows.length;
    onhidden(() => switches.update());
    grid.size = side();
    onchange(["size"], () => grid.resize(side()));
    await grid.show(query());
  },
  focus() { ($("scroller").hidden ? $("empty") : $("scroller")).focus(); }, // what is hidden takes no focus
  key(event) {
    if (markKey(event, grid.record()) || tagKey(event, grid.record())) return true;
    if (event.target.closest("button, a, summary")) return false;
    if (KEYS[event.key]) grid.select(KEYS[event.key]());
    else if (event.key === "Enter" && grid.count) openAt(grid.at);
    else return false;
    return true;
  },
};

function redraw() { grid.redraw(); detail.redraw(); }
onhidden(redraw);
export function setUpOverlays() {
  const backgrounds = Object.entries(pack.masks).filter(([, { background }]) => background !== null);
  hideAtFirst(backgrounds.map(([name, { background }]) => `${name}:${background}`)); // they would hide the picture
  followOverlays(redraw);
  followPredictions(redraw);
  onwindow(() => { grid.repaint(query()); detail.repaint(); });
  $("legend").before(windowControls());
  detail.stage.tools.append(windowControls(), detail.levels.root);
  $("legend").before(controls(), predictionControls());
  detail.stage.tools.append(controls(), predictionControls());
}

export const gridCount = () => grid.count;
onchange(["record", "object"], showRecord);
$("detail").addEventListener("close", () => set({ record: -1, object: -1 }));
export const openRecord = showRecord;
export const detailKey = (event) => {
  if (!detail.isOpen) return false;
  const handled = detail.key(event);
  return handled === null && !event.target.matches("input, select, textarea") && (markKey(event, get("record")) || tagKey(event, get("record")) || overlayKey(event)) ? true : handled;
};
