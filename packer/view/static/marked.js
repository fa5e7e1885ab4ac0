// Marks: records to correct, or to leave out of the next pack. The server keeps them; other pages may change them too.
import { caption, element, picture } from "./draw.js";
import { copyable } from "./copy.js";
import { query, showRecords } from "./filters.js";
import { ask, complain, post } from "./server.js";
import { get, pack, set } from "./state.js";
import { setCount } from "./tabs.js";
import { loadTags, setUpTags, tagList } from "./tags.js";

const $ = (id) => document.getElementById(id);
const AT_ONCE = 60, MOST_SENT = 10_000, TOAST_MS = 8000;
const marks = new Map(), changes = [];
let reasons = [], packs = [], queue = Promise.resolve(), toastEnds, shown = AT_ONCE;
const records = (count) => `${count.toLocaleString("en")} ${count === 1 ? "record" : "records"}`;

export const isMarked = (record) => marks.has(record);

export async function loadMarks() {
  const facts = await ask("marks");
  marks.clear();
  for (const [record, reason] of facts.marks) marks.set(record, reason);
  ({ reasons, packs } = facts);
  $("reasons").replaceChildren(...reasons.map((reason) => element("option", { value: reason })));
  redraw();
}

function redraw() {
  for (const tile of document.querySelectorAll(".tile[data-record]")) tile.classList.toggle("marked", marks.has(Number(tile.dataset.record)));
  setCount("marked", marks.size);
  markForm(get("record"));
}

// One change after the other, so that a key that is pressed twice marks and unmarks.
function change(bodyOf, { undoes = false } = {}) {
  queue = queue.then(async () => {
    try {
      const before = new Map(), after = new Map();
      for (const body of [bodyOf()].flat()) {
        const facts = await post("marks", body);
        for (const [record, reason] of Object.entries(facts.before)) before.set(Number(record), reason);
        for (const [record, reason] of Object.entries(facts.after)) after.set(Number(record), reason);
      }
      for (const [record, reason] of after) if (reason === null) marks.delete(record); else marks.set(record, reason);
      if (!undoes && after.size) changes.push(before);
      redraw();
      if (get("tab") === "marked") await list();
      return after;
    } catch (error) { complain(error); return new Map(); }
  });
  return queue;
}

export async function toggleMark(record) {
  const after = await change(() => ({ set: { [record]: marks.has(record) ? null : "" } }));
  if (after.size) toast(marks.has(record) ? "Marked" : "Mark removed", marks.has(record) ? [record] : []);
}

// Mark what is at two places of the grid, and all between them.
export async function markRange(first, last) {
  const after = await change(() => ({ range: [first, last], query: Object.fromEntries(new URLSearchParams(query())) }));
  toast(after.size ? `Marked ${records(after.size)}` : "All of them are marked already", [...after.keys()]);
}

// Mark all records that match.
export async function markAll(query, count) {
  const parts = [];
  for (let first = 0; first < count; first += MOST_SENT) parts.push({ range: [first, Math.min(count, first + MOST_SENT) - 1], query });
  const after = await change(() => parts);
  toast(after.size ? `Marked ${records(after.size)}` : "All of them are marked already", [...after.keys()]);
}

const inParts = (all) => Array.from({ length: Math.ceil(all.length / MOST_SENT) }, (_, n) => ({ set: Object.fromEntries(all.slice(n * MOST_SENT, (n + 1) * MOST_SENT)) }));
function giveReason(of, reason) { return change(() => inParts(of.map((record) => [record, reason]))); }

export async function undo() {
  const before = changes.pop();
  if (!before) { toast("Nothing to undo"); return; }
  await change(() => inParts([...before]), { undoes: true });
  toast(`Undone: ${records(before.size)}`);
}

// Handle the keys of marks and return whether it was one; `record` may be -1.
export function markKey(event, record) {
  if (event.key === "x" && record >= 0) toggleMark(record);
  else if (event.key === "u") undo();
  else return false;
  return true;
}

// Say what was done, for a while; `of` are records whose reason can be given.
function toast(text, of = [], undoTags = null) {
  const parts = [element("span", {}, text)];
  const button = (name, work) => {
    const made = element("button", { type: "button" }, name);
    made.addEventListener("click", work);
    parts.push(made);
  };
  for (const reason of of.length ? reasons : []) button(reason, async () => { await giveReason(of, reason); toast(`Marked as ${reason}`); });
  if (undoTags) button("Undo", async () => { await undoTags(); toast("Undone"); });
  else if (changes.length) button("Undo", undo);
  const made = $("toast");
  made.replaceChildren(...parts);
  ($("detail").open ? $("detail") : document.body).append(made); // outside of an open dialog it could not be clicked
  made.hidden = false;
  clearTimeout(toastEnds);
  toastEnds = setTimeout(() => { made.hidden = true; }, TOAST_MS);
}

// The mark of the open record, beside its fields.
export function markForm(record) {
  const marked = marks.has(record);
  $("mark").textContent = marked ? "Remove mark" : "Mark";
  $("mark").setAttribute("aria-pressed", marked);
  $("mark-reason").hidden = !marked;
  if (document.activeElement !== $("mark-reason")) $("mark-reason").value = marks.get(record) ?? "";
}

function row(facts) {
  const open = element("button", { type: "button", class: "thumb", "aria-label": `open ${facts.key}` }, picture(facts));
  open.addEventListener("click", () => set({ record: facts.record }));
  const why = element("input", { list: "reasons", value: marks.get(facts.record) ?? "", placeholder: "reason", maxlength: 200, "aria-label": `reason of ${facts.key}` });
  why.addEventListener("change", () => giveReason([facts.record], why.value));
  const remove = element("button", { type: "button", "aria-label": `remove the mark of ${facts.key}` }, "Remove mark");
  remove.addEventListener("click", () => toggleMark(facts.record));
  const name = element("div", { class: "of" }, element("div", {}, facts.file ?? facts.key), caption(facts));
  return element("li", {}, open, name, why, remove);
}

function button(name, work, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, name);
  made.addEventListener("click", work);
  return made;
}

function bar() {
  const parts = [element("output", {}, `${records(marks.size)} marked`)];
  for (const [number, { name, count }] of packs.entries()) {
    const link = element("a", { class: "button", href: `marks.txt?pack=${number}`, download: packs.length > 1 ? `marks-${name}.txt` : "marks.txt" });
    link.append(packs.length > 1 ? `Export list of ${name}` : "Export list");
    if (count || packs.length === 1) parts.push(link);
  }
  parts.push(button("Show in Records", () => showRecords({ set: ["marked:all"] })));
  if (changes.length) parts.push(button("Undo", undo));
  parts.push(button("Clear", () => change(() => ({ clear: true }))));
  return element("div", { class: "bar" }, ...parts);
}

function uses() {
  // each of several packs has a list of its own
  const path = packs.length > 1 ? "PACK" : /^[\w./:@%+-]+$/.test(pack.path) ? pack.path : `'${pack.path.replaceAll("'", "'\\''")}'`;
  return element("details", {}, element("summary", {}, "What to do with the list"),
    element("p", {}, "Leave the marked records out of a copy of this pack:"), copyable(`packer convert ${path} clean --exclude marks.txt`, "command"),
    element("p", {}, "Build again without them, with the same options:"), copyable(`packer build SRC -o clean --like ${path} --exclude marks.txt`, "command"),
    element("p", {}, "Take their images and labels out, to correct them:"), copyable(`packer extract ${path} marked --include marks.txt${pack.fields.includes("boxes") ? " --layout voc" : ""}`, "command"));
}

async function list() {
  const panel = $("tab-marked"), rows = [];
  if (!marks.size) {
    const more = changes.length ? [button("Undo", undo)] : [];
    panel.replaceChildren(element("div", { class: "nothing" }, element("p", {}, "No record is marked. Select one and press x, or click with Shift to mark all from the selected one."), ...more), element("div", { class: "page" }, tagList()));
    return;
  }
  const wanted = Math.min(shown, marks.size);
  for (let start = 0; start < wanted; start += AT_ONCE) {
    const { tiles } = await ask("tiles", { set: "marked:all", start, count: Math.min(AT_ONCE, wanted - start), side: 160 });
    rows.push(...tiles.map(row));
  }
  const focus = document.activeElement?.getAttribute("aria-label");
  const parts = [tagList(), element("h2", {}, "Marks"), uses(), element("ul", { class: "marked-list" }, ...rows)];
  if (marks.size > wanted) parts.push(button(`Show more (${(marks.size - wanted).toLocaleString("en")})`, () => { shown += AT_ONCE; list(); }));
  panel.replaceChildren(bar(), element("div", { class: "page" }, ...parts));
  if (focus) panel.querySelector(`[aria-label="${CSS.escape(focus)}"]`)?.focus();
}

export const tab = {
  id: "marked",
  name: "Marked",
  async show() { await Promise.all([loadMarks(), loadTags()]); shown = AT_ONCE; await list(); },
  key: (event) => markKey(event, -1),
};

// `count`: returns the number of records in the grid
export function setUpMarks(count) {
  setUpTags({ toast: (text, undoTags) => toast(text, [], undoTags), count, changed: () => { if (get("tab") === "marked") list(); } });
  $("mark").addEventListener("click", () => toggleMark(get("record")));
  $("mark-reason").addEventListener("change", () => giveReason([get("record")], $("mark-reason").value));
  // another page may have marked others
  addEventListener("focus", () => { if (!document.hidden) loadMarks().then(() => get("tab") === "marked" && list()).catch(complain); });
  return loadMarks().catch(complain);
}
