// The tab of inputs that are not in the pack, with reasons, and of the notes of the build.
import { element } from "./draw.js";
import { ask } from "./server.js";

function content({ total, rejected, notes }) {
  const parts = notes.map((note) => element("p", { class: "note" }, note));
  if (!total) return [...parts, element("p", { class: "nothing" }, "No input was rejected.")];
  const body = element("tbody");
  for (const row of rejected) body.append(element("tr", {}, ...[row.path, row.reason, row.problem].map((text) => element("td", {}, text))));
  const head = element("thead", {}, element("tr", {}, ...["input", "kind", "why"].map((text) => element("th", { scope: "col" }, text))));
  const many = total > rejected.length ? `, the first ${rejected.length.toLocaleString("en")}` : "";
  const inputs = total === 1 ? "1 input is" : `${total.toLocaleString("en")} inputs are`;
  return [...parts, element("p", { class: "note" }, `${inputs} not in the pack${many}`), element("table", {}, head, body)];
}

export const tab = {
  id: "rejected",
  name: "Rejected",
  once: true,
  count: (pack) => pack.rejected,
  async show(panel) { panel.replaceChildren(element("div", { class: "page" }, ...content(await ask("rejected")))); },
};
