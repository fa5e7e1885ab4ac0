// Tags: names that the user gives records, several at once, by keys 1 to 9 and t. The server keeps them, as it does marks.
import { element } from "./draw.js";
import { copyable } from "./copy.js";
import { query, showRecords } from "./filters.js";
import { ask, complain, post } from "./server.js";
import { get, pack, set } from "./state.js";

const $ = (id) => document.getElementById(id);
const tags = new Map(), listeners = []; // name -> a set of records
let packs = {}, target = -1, say = () => {}, shownCount = () => 0, queue = Promise.resolve();
const named = (count) => `${count.toLocaleString("en")} ${count === 1 ? "record" : "records"}`;

export async function loadTags() {
  const facts = await ask("tags");
  tags.clear(); packs = {};
  for (const { tag, records, packs: counts } of facts.tags) { tags.set(tag, new Set(records)); packs[tag] = counts; }
  redraw();
}

function redraw() {
  for (const tile of document.querySelectorAll(".tile[data-record]")) badge(tile);
  $("tag-names").replaceChildren(...[...tags.keys()].map((tag) => element("option", { value: tag })));
  $("tagged").parentElement.hidden = !tags.size;
  $("tagged").replaceChildren(element("option", { value: "" }, "all"), ...[...tags.keys()].map((tag) => element("option", { value: `tagged:${tag}` }, tag)));
  $("tagged").value = get("set").find((name) => name.startsWith("tagged:")) ?? "";
  tagForm(get("record"));
  for (const listener of listeners) listener();
}

// The names on a tile of the grid.
export function badge(tile) {
  tile.querySelector(".tags-of")?.remove();
  const names = [...tags].filter(([, records]) => records.has(Number(tile.dataset.record))).map(([tag]) => tag);
  if (names.length) tile.append(element("span", { class: "tags-of" }, ...names.map((tag) => element("span", {}, tag))));
}

// One change after the other, as marks.
function change(body) {
  queue = queue.then(async () => {
    try {
      const done = await post("tags", body);
      await loadTags();
      return done;
    } catch (error) { complain(error); return null; }
  });
  return queue;
}

async function apply(tag, on, what) {
  const done = await change({ tag, on, ...what });
  if (done) say(`${on ? "Tagged" : "Tag taken from"} ${named(done.records.length)}: ${done.tag}`, () => change({ tag: done.tag, on: !on, records: done.records }));
}

const toggle = (tag, record) => apply(tag, !tags.get(tag)?.has(record), { records: [record] });

// Handle the keys of tags and return whether it was one.
export function tagKey(event, record) {
  const tag = [...tags.keys()][Number(event.key) - 1];
  if (record < 0) return false;
  if (event.key === "t") askFor(record);
  else if (/^[1-9]$/.test(event.key) && tag) toggle(tag, record);
  else return false;
  return true;
}

function askFor(record) {
  target = record;
  const count = shownCount();
  $("tag-all").checked = false;
  $("tag-all").parentElement.hidden = count < 2 || $("detail").open || get("crops");
  $("tag-all-of").textContent = `all ${named(count)} that are shown`;
  $("tag-name").value = "";
  $("tag-dialog").showModal();
}

// The tags of the open record, beside its fields: all that there are, to be switched.
export function tagForm(record) {
  const buttons = [...tags].map(([tag, records], n) => {
    const made = element("button", { type: "button", class: "chip", "aria-pressed": records.has(record), title: n < 9 ? `key ${n + 1}` : "" }, tag);
    made.addEventListener("click", () => toggle(tag, record));
    return made;
  });
  const more = element("button", { type: "button", class: "clear", title: "key t" }, "Tag ...");
  more.addEventListener("click", () => askFor(record));
  $("tags").replaceChildren(...buttons, more);
}

// The tags in the tab Marked: what each has, and what can be done with it.
export function tagList() {
  if (!tags.size) return element("p", { class: "note" }, "No record has a tag. Select one and press t.");
  const rows = [...tags].map(([tag, records], n) => {
    const show = element("button", { type: "button" }, "Show in Records"), remove = element("button", { type: "button", "aria-label": `remove the tag ${tag}` }, "Remove");
    show.addEventListener("click", () => showRecords({ set: [`tagged:${tag}`], sort: "set" }));
    remove.addEventListener("click", () => apply(tag, false, { records: [...records] }));
    const lists = pack.packs.flatMap(({ name }, number) => (packs[tag][number] ? [exportLink(tag, number, name)] : []));
    return element("li", {}, element("kbd", {}, n < 9 ? String(n + 1) : ""), element("strong", {}, tag), element("span", {}, named(records.size)), element("span", { class: "actions" }, show, ...lists, remove));
  });
  const first = tags.keys().next().value, path = pack.packs.length > 1 ? "PACK" : pack.path, file = fileOf(first);
  return element("div", {}, element("h2", {}, "Tags"), element("ul", { class: "tag-list" }, ...rows),
    element("details", {}, element("summary", {}, "What to do with a list of a tag"), element("p", {}, "A pack of these records only, or one without them:"),
      copyable(`packer convert ${quoted(path)} tagged --include ${quoted(file)}\npacker edit ${quoted(path)} -o rest --delete ${quoted(file)}`, "commands")));
}

const fileOf = (tag) => `${tag.replaceAll(/[^\p{L}\p{N}_-]+/gu, "-")}.txt`;
const quoted = (text) => (/^[\w./:@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

function exportLink(tag, number, name) {
  const several = pack.packs.length > 1;
  return element("a", { class: "button", href: `tags.txt?${new URLSearchParams({ tag, pack: number })}`, download: several ? `${name}-${fileOf(tag)}` : fileOf(tag) }, several ? `Export list of ${name}` : "Export list");
}

// `toast(text, undo)`: say what was done; `count()`: the number of records in the grid; `changed`: called when tags have changed.
export function setUpTags({ toast, count, changed }) {
  say = toast; shownCount = count; listeners.push(changed);
  $("tagged").addEventListener("change", () => set({ set: [...get("set").filter((name) => !name.startsWith("tagged:")), $("tagged").value].filter(Boolean) }));
  $("tag-close").addEventListener("click", () => $("tag-dialog").close());
  $("tag-dialog").querySelector("form").addEventListener("submit", () => {
    const tag = $("tag-name").value.trim();
    if (!tag) return;
    if ($("tag-all").checked) apply(tag, true, { range: [0, count() - 1], query: Object.fromEntries(new URLSearchParams(query())) });
    else apply(tag, true, { records: [target] });
  });
  return loadTags().catch(complain);
}
