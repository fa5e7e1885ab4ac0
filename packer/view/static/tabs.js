// The row of tabs: one is shown, arrows move between them (the tabs pattern of WAI-ARIA).
import { element } from "./draw.js";
import { complain } from "./server.js";
import { declare, get, pack, set } from "./state.js";

declare({ tab: "records" });
const $ = (id) => document.getElementById(id);
const shown = new Set();
let tabs = [];

// The tab of the address; the first if that is not known.
export function current() { return tabs.find((tab) => tab.id === get("tab")) ?? tabs[0]; }

export function setCount(id, count) {
  $(`tab-of-${id}`).querySelector(".count").textContent = count ? ` (${count.toLocaleString("en")})` : "";
}

export function setUpTabs(all) {
  tabs = all;
  for (const tab of tabs) {
    const button = element("button", { type: "button", role: "tab", id: `tab-of-${tab.id}`, "data-tab": tab.id, "aria-controls": `tab-${tab.id}` }, tab.name, element("span", { class: "count" }));
    button.addEventListener("click", () => {
      set({ tab: tab.id });
      const panel = $(`tab-${tab.id}`);
      const page = panel.querySelector(".page");
      if (page) page.tabIndex = 0; // it scrolls: by keys, too
      (tab.focus ? tab : page ?? panel).focus(); // so that its keys work at once
    });
    $("tabs").append(button);
    if (!$(`tab-${tab.id}`)) document.querySelector("main").append(element("section", { id: `tab-${tab.id}`, hidden: "" }));
    const panel = $(`tab-${tab.id}`);
    panel.setAttribute("role", "tabpanel"); panel.setAttribute("aria-labelledby", button.id); panel.tabIndex = -1;
    panel.setAttribute("aria-busy", true);
    setCount(tab.id, tab.count?.(pack));
  }
  setUpArrows();
  $("tabs").addEventListener("keydown", (event) => {
    const at = tabs.indexOf(current()), last = tabs.length - 1;
    const to = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at ? at - 1 : last, Home: 0, End: last }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    set({ tab: tabs[to].id }, { replace: true });
    $(`tab-of-${tabs[to].id}`).focus();
  });
}

// Show by arrows at the ends of the row that it scrolls there, as on a phone.
function setUpArrows() {
  const row = $("tabs"), [back, on] = [["‹", -1], ["›", 1]].map(([text, by]) => {
    const made = element("button", { type: "button", class: "scrolls", "aria-hidden": "true", tabindex: -1, hidden: "" }, text); // keys move through the tabs
    made.addEventListener("click", () => row.scrollBy({ left: by * row.clientWidth * 0.6, behavior: "smooth" }));
    return made;
  });
  const look = () => {
    back.hidden = row.scrollLeft < 4;
    on.hidden = row.scrollLeft + row.clientWidth > row.scrollWidth - 4;
    row.classList.toggle("more-before", !back.hidden); row.classList.toggle("more-after", !on.hidden);
  };
  row.before(back); row.after(on);
  row.addEventListener("scroll", look, { passive: true });
  for (const one of [row, ...row.children]) new ResizeObserver(look).observe(one);
}

// Show the tab of the address.
export async function choose() {
  const tab = current();
  for (const { id } of tabs) {
    $(`tab-${id}`).hidden = id !== tab.id;
    $(`tab-of-${id}`).setAttribute("aria-selected", id === tab.id);
    $(`tab-of-${id}`).tabIndex = id === tab.id ? 0 : -1;
  }
  $(`tab-of-${tab.id}`).scrollIntoView({ block: "nearest", inline: "nearest" }); // a phone shows some of the tabs
  document.title = tab === tabs[0] ? `${pack.name} - packer view` : `${pack.name}: ${tab.name} - packer view`;
  complain(null);
  if (tab.once && shown.has(tab.id)) return;
  shown.add(tab.id);
  const panel = $(`tab-${tab.id}`);
  panel.setAttribute("aria-busy", true);
  try { await tab.show(panel); } catch (error) { shown.delete(tab.id); complain(error); }
  panel.setAttribute("aria-busy", false);
  for (const page of panel.querySelectorAll(".page")) page.tabIndex = 0;
}
