// The tab of predictions: how good they are, and which records are wrong; each figure leads to its records.
import { dot, element, nameOf } from "./draw.js";
import { showRecords } from "./filters.js";
import { confidenceSlider } from "./predicted.js";
import { ask, complain } from "./server.js";
import { bind, declare, get, onchange, pack, set } from "./state.js";

declare({ compared: "" });
const AGAIN_MS = 300;
const many = (n) => n.toLocaleString("en");
const share = (value) => (value === null ? "" : value.toFixed(3));
const named = (id) => (id < 0 ? "nothing" : nameOf(id));
let wish = 0;

const name = () => (pack.predictions.some((one) => one.name === get("compared")) ? get("compared") : pack.predictions[0].name);
const setOf = (what) => `predictions:${name()};${what};${get("iou")};${get("confidence")}`;
const show = (what) => showRecords({ set: [setOf(what)], sort: "set" });

function link(text, action, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, ...[text].flat());
  made.addEventListener("click", action);
  return made;
}

const card = (title, ...content) => element("article", { class: "card", "aria-label": title }, element("h2", {}, title), ...content);

function totals(found) {
  const figures = found.kind === "boxes" ? [["precision", found.precision], ["recall", found.recall], ["F1", found.f1]]
    : found.kind === "labels" ? [["accuracy", found.accuracy], ["top 5", found.top5]]
      : [["mean IoU", found.mean_iou], ["accuracy of pixels", found.accuracy]];
  const list = element("div", { class: "totals" });
  for (const [title, value] of figures) if (value !== null) list.append(element("div", {}, element("strong", {}, share(value)), element("span", {}, title)));
  for (const { name: what, title, records } of found.sets) {
    const of = `${many(records)} ${records === 1 ? "record" : "records"}`, errors = found.errors?.[what];
    list.append(link([element("strong", {}, many(errors ?? records)), element("span", {}, errors === undefined ? `${title}: ${of}` : `${title}, in ${of}`)], () => show(what), { "data-set": what }));
  }
  const notes = found.notes.map((note) => element("p", { class: "note" }, note));
  const rule = found.kind === "boxes" ? "Misplaced: of the right class, but with less overlap than the IoU. AP: packer stats --compare." : "";
  return card(`${found.name}: ${many(found.labels)} labelled, ${many(found.predicted)} predicted`, list, ...notes, element("p", { class: "note" }, rule));
}

// A cell is as dark as its share of the labels of its row.
function matrix({ matrix: { ids, counts }, kind }) {
  const table = element("table", { class: "confusion" }), head = element("tr", {}, element("th"));
  for (const id of ids) head.append(element("th", { scope: "col", title: named(id) }, element("span", {}, named(id))));
  table.append(element("thead", {}, head));
  const body = element("tbody");
  counts.forEach((row, n) => {
    const sum = row.reduce((a, b) => a + b, 0), line = element("tr", {}, element("th", { scope: "row", title: named(ids[n]) }, named(ids[n])));
    row.forEach((count, m) => {
      const cell = element("td");
      if (count) {
        const made = link(short(count), () => show(`${ids[n]}>${ids[m]}`), { title: `${many(count)} labelled ${named(ids[n])}, predicted ${named(ids[m])}: show the records` });
        made.style.setProperty("--share", (count / sum).toFixed(3));
        made.className = n === m ? "right" : "off";
        cell.append(made);
      }
      line.append(cell);
    });
    body.append(line);
  });
  table.append(body);
  const what = { boxes: "boxes", labels: "images", mask: "pixels" }[kind];
  const made = card("Confusion", element("div", { class: "across", tabindex: 0, role: "group", "aria-label": "confusion matrix" }, table), element("p", { class: "note" }, `Rows are labels, columns predictions, in ${what}. A click shows the records of a cell.`));
  made.classList.add("wide");
  return made;
}

const short = (n) => (n < 10000 ? String(n) : n < 1e6 ? `${Math.round(n / 1000)}k` : `${(n / 1e6).toFixed(1)}M`);

function pairs({ confusion }) {
  const list = element("div", { class: "classes pairs" }), most = confusion[0]?.[2];
  for (const [a, b, count] of confusion.slice(0, 40)) {
    const fill = element("div", { class: "fill" });
    fill.style.width = `${(100 * count) / most}%`; fill.style.background = "var(--accent)";
    const of = element("span", {}, ...(a < 0 ? [] : [dot(a)]), named(a), " → ", ...(b < 0 ? [] : [dot(b)]), named(b));
    list.append(link([of, element("span", { class: "track" }, fill), element("span", {}, many(count))], () => show(`${a}>${b}`), { class: "class-row" }));
  }
  return confusion.length ? card("Most common errors: label → prediction", list) : "";
}

function classes(found) {
  const table = element("table", { class: "figures" }), last = found.kind === "mask" ? ["IoU"] : ["F1"];
  table.append(element("thead", {}, element("tr", {}, ...["class", "labels", "predicted", "precision", "recall", ...last].map((text) => element("th", { scope: "col" }, text)))));
  const rows = [...found.classes].sort((a, b) => b.labels - a.labels).slice(0, 1000).map((one) => {
    const figures = [many(one.labels), many(one.predicted), share(one.precision), share(one.recall), share(found.kind === "mask" ? one.iou : one.f1)];
    return element("tr", {}, element("th", { scope: "row" }, dot(one.id), one.name), ...figures.map((text) => element("td", {}, text)));
  });
  table.append(element("tbody", {}, ...rows));
  return card("Classes", element("div", { class: "across classes", tabindex: 0, role: "group", "aria-label": "classes" }, table));
}

async function fill(page) {
  const mine = (wish += 1);
  while (mine === wish) {
    const found = await ask("predictions", { name: name(), iou: get("iou"), confidence: get("confidence") });
    if (mine !== wish) return;
    if (found.error) { page.replaceChildren(element("p", { class: "note" }, found.error)); return; }
    if (found.found) {
      page.replaceChildren(totals(found.found), pairs(found.found), classes(found.found), matrix(found.found));
      return;
    }
    page.replaceChildren(element("div", { role: "status" }, element("p", {}, `${many(found.done)} of ${many(found.images)} records compared`), element("progress", { max: found.images, value: found.done, "aria-label": "records compared" })));
    await new Promise((resolve) => { setTimeout(resolve, AGAIN_MS); });
  }
}

function bar() {
  const which = element("select", { "aria-label": "predictions" }), iou = element("input", { type: "number", min: 0, max: 1, step: 0.05 });
  which.append(...pack.predictions.map((one) => element("option", { value: one.name }, one.name)));
  const look = () => { which.value = name(); of.hidden = pack.predictions.find((one) => one.name === name()).kind !== "boxes"; };
  which.addEventListener("change", () => set({ compared: which.value === pack.predictions[0].name ? "" : which.value }));
  bind(iou, "iou");
  const of = element("span", { class: "overlays" }, element("label", {}, "IoU ", iou), element("span", {}, "confidence"), confidenceSlider());
  onchange(["compared"], look); look();
  return element("form", { class: "bar", "aria-label": "what is compared" }, element("label", {}, "predictions ", which), of);
}

export const tab = {
  id: "predictions",
  name: "Predictions",
  there: ({ predictions }) => predictions.length > 0,
  async show(panel) {
    if (!panel.querySelector(".page")) {
      const form = bar(), page = element("div", { class: "page charts" });
      form.addEventListener("submit", (event) => event.preventDefault());
      panel.replaceChildren(form, page);
      onchange(["compared", "iou", "confidence"], () => { this.stale = true; if (!panel.hidden) this.show(panel).catch(complain); });
      this.stale = true;
    }
    if (!this.stale) return;
    this.stale = false;
    await fill(panel.querySelector(".page"));
  },
};
