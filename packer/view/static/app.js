// Tabs and keys. A tab is a module that exports `tab`:
//   id, name     of the address, and of the button
//   show(panel)  fill its panel (<section id="tab-ID">); called whenever the tab is shown, or with once: true until it succeeds
//   there(pack)  whether this pack has it (optional)
//   count(pack)  a number beside the name (optional); later changes by setCount of tabs.js
//   key(event)   handle a key and return whether it did (optional)
//   focus()      focus what the keys move (optional)
//   prepare()    called when the page is there, for what takes long (optional)
// It is imported here and listed in TABS, in the order of the buttons. It reads and changes what the address holds by
// state.js, and leads to records by showRecords of filters.js or set({ record }).
import { drawn, names } from "./draw.js";
import { declareValues } from "./filters.js";
import { ask, complain } from "./server.js";
import { get, onchange, pack, set } from "./state.js";
import { choose, current, setUpTabs } from "./tabs.js";
import { detailKey, gridCount, openRecord, setUpOverlays, tab as records } from "./records.js";
import { overlayKey } from "./overlays.js";
import { setUpMarks, tab as marked } from "./marked.js";
import { tab as batches } from "./batches.js";
import { tab as map } from "./map.js";
import { tab as predictions } from "./predictions.js";
import { tab as problems } from "./problems.js";
import { tab as statistics } from "./charts.js";
import { tab as rejected } from "./rejected.js";

const TABS = [records, batches, statistics, map, problems, predictions, marked, rejected];
const $ = (id) => document.getElementById(id);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const handled = detailKey(event);
  if (handled) event.preventDefault();
  if (handled !== false || $("help").open || $("tag-dialog").open) return;
  const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
  if (event.key === "Escape" && typing) {
    if (event.target.id === "text" && event.target.value) { event.target.value = ""; set({ text: "" }); }
    current().focus?.();
  } else if (event.key === "/" && !typing) {
    set({ tab: "records" }); $("text").focus(); $("text").select();
  } else if (event.key === "?" && !typing) {
    $("help").showModal();
  } else if (typing) {
    if (event.target.id !== "text" || !["Enter", "ArrowDown"].includes(event.key)) return;
    $("scroller").focus();
  } else if (!overlayKey(event) && !current().key?.(event)) return;
  event.preventDefault();
});
$("help-open").addEventListener("click", () => $("help").showModal());
$("help").addEventListener("click", (event) => { if (event.target === $("help")) $("help").close(); });

async function begin() {
  try { Object.assign(pack, await ask("pack")); } catch (error) { complain(error); return; }
  declareValues();
  names.classes = pack.classes; drawn.skeleton = pack.skeleton; drawn.points = pack.points;
  $("name").textContent = pack.name; $("name").title = pack.path;
  const shape = pack.shape ? `${pack.shape[1]} x ${pack.shape[0]}` : "different sizes";
  $("about").textContent = `${pack.container}, ${pack.encoding}, ${shape}, ${pack.size}`;
  setUpOverlays();
  const tabs = TABS.filter((tab) => tab.there?.(pack) ?? true);
  setUpTabs(tabs);
  onchange(["tab"], () => choose());
  await choose();
  current().focus?.();
  if (get("record") >= 0) await openRecord();
  await setUpMarks(gridCount);
  for (const tab of tabs) tab.prepare?.();
}

begin();
