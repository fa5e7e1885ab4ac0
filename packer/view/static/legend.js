// The legend: buttons that switch classes on and off, in all drawings at once. The address holds what is off.
import { dot, drawn, element, nameOf } from "./draw.js";
import { declare, get, onchange, set } from "./state.js";

declare({ hide: [] });
export function setHidden(keys) { set({ hide: [...keys].map(String) }, { replace: true }); }
const read = () => { drawn.hidden = new Set(get("hide").map((key) => (key.includes(":") ? key : Number(key)))); };
read();
// What is off unless the address says something else.
export function hideAtFirst(keys) { declare({ hide: keys }); read(); }
export function onhidden(listener) { onchange(["hide"], () => { read(); listener(); }); }

// What `legend` shows of classes of boxes (class id -> objects, or null), and of an overlay (its rows: id, name, per cent).
export const ofBoxes = (counts) => [...counts].map(([id, count]) => ({ key: id, dot: dot(id), name: id < 0 ? "without class" : nameOf(id), note: count?.toLocaleString("en") }));
export const ofOverlay = (part, { legend, ignore }) => legend.map(([id, name, share]) => ({ key: `${part}:${id}`, dot: dot(id, id === ignore), name, note: share === undefined ? "" : `${share} %` }));

// One button for each class.
export function legend(rows) {
  const all = rows.map(({ key }) => key), list = element("div", { class: "legend", role: "group", "aria-label": "classes that are drawn" });
  for (const { key, dot, name, note } of rows) {
    const made = element("button", { type: "button", "aria-pressed": !drawn.hidden.has(key), title: "double click: only this class" }, dot, name);
    if (note) made.append(element("small", {}, ` ${note}`));
    made.addEventListener("click", (event) => {
      const hidden = new Set(drawn.hidden);
      if (event.detail > 1) { all.forEach((other) => hidden.add(other)); hidden.delete(key); }
      else if (!hidden.delete(key)) hidden.add(key);
      setHidden(hidden);
    });
    list.append(made);
  }
  if (all.length > 1) {
    const every = element("button", { type: "button", class: "plain" }, "all"), none = element("button", { type: "button", class: "plain" }, "none");
    every.addEventListener("click", () => setHidden([...drawn.hidden].filter((key) => !all.includes(key))));
    none.addEventListener("click", () => setHidden(new Set([...drawn.hidden, ...all])));
    list.append(every, none);
  }
  list.update = () => all.forEach((key, n) => list.children[n].setAttribute("aria-pressed", !drawn.hidden.has(key)));
  return list;
}
