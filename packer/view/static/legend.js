// The legend: buttons that switch classes on and off, in all drawings at once. The address holds what is off.
import { dot, drawn, element, nameOf } from "./draw.js";
import { declare, get, onchange, set } from "./state.js";

declare({ hide: [] });
export function setHidden(ids) { set({ hide: [...ids].map(String) }, { replace: true }); }
const read = () => { drawn.hidden = new Set(get("hide").map(Number)); };
read();
export function onhidden(listener) { onchange(["hide"], () => { read(); listener(); }); }

// One button for each class; `counts`: class id -> objects, or null.
export function legend(counts) {
  const all = [...counts.keys()], list = element("div", { class: "legend", role: "group", "aria-label": "classes that are drawn" });
  for (const [id, count] of counts) {
    const made = element("button", { type: "button", "aria-pressed": !drawn.hidden.has(id), title: "double click: only this class" }, dot(id), id < 0 ? "without class" : nameOf(id));
    if (count !== null) made.append(element("small", {}, ` ${count.toLocaleString("en")}`));
    made.addEventListener("click", (event) => {
      const hidden = new Set(drawn.hidden);
      if (event.detail > 1) { all.forEach((other) => hidden.add(other)); hidden.delete(id); }
      else if (!hidden.delete(id)) hidden.add(id);
      setHidden(hidden);
    });
    list.append(made);
  }
  if (all.length > 1) {
    const every = element("button", { type: "button", class: "plain" }, "all"), none = element("button", { type: "button", class: "plain" }, "none");
    every.addEventListener("click", () => setHidden([...drawn.hidden].filter((id) => !counts.has(id))));
    none.addEventListener("click", () => setHidden(new Set([...drawn.hidden, ...all])));
    list.append(every, none);
  }
  list.update = () => [...counts.keys()].forEach((id, n) => list.children[n].setAttribute("aria-pressed", !drawn.hidden.has(id)));
  return list;
}
