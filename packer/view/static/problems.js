// The tab of problems: a card for each kind, with examples; a click shows its records.
import { element, picture } from "./draw.js";
import { showRecords } from "./filters.js";
import { thumb } from "./map.js";
import { pile } from "./masonry.js";
import { ask } from "./server.js";
import { pack, set } from "./state.js";
import { setCount } from "./tabs.js";
import { twinsOf } from "./twins.js";

let shown = "";
const LEVELS = { wrong: "wrong", check: "to check", note: "good to know" };
const HIGH = 124; // of a picture, as in view.css
const counted = (count, one) => `${count.toLocaleString("en")} ${one}${count === 1 ? "" : "s"}`;

function card(problem) {
  const examples = element("div", { class: "examples" });
  const made = element("article", { class: `card problem is-${problem.level}`, "data-kind": problem.kind, "aria-label": problem.title });
  made.append(element("h2", {}, element("span", { class: "level" }, LEVELS[problem.level]), problem.title), element("p", {}, problem.text), examples);
  if (problem.records) {
    const show = element("button", { type: "button" }, `Show ${counted(problem.records, "record")}`);
    show.addEventListener("click", () => showRecords({ set: [`problem:${problem.kind}`], sort: "set" }));
    made.append(show);
    fill(examples, problem.kind);
  }
  return made;
}

// Examples are fetched when their card is nearly in sight.
function fill(examples, kind) {
  new IntersectionObserver(async (entries, observer) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    try {
      const found = await ask("problem", { kind });
      examples.replaceChildren(...found.examples.map((facts) => example(facts, examples.clientWidth / 3 - 14)));
    } catch (error) { examples.replaceChildren(element("p", { class: "note" }, error.message)); }
  }, { rootMargin: "300px" }).observe(examples);
}

// The end of a path says most of which file it is.
const MOST_PATH = 44;
const endOf = (path) => (path.length > MOST_PATH ? `…${path.slice(-MOST_PATH)}` : path);

function example(facts, width) {
  const where = facts.pack ? `${facts.pack}: ${facts.path}` : facts.path, room = facts.boxes && twinsOf(facts).size ? [width, HIGH] : null;
  const made = element("button", { type: "button", class: "example", title: `${where}\n${facts.detail}`, "aria-label": `record ${facts.key}: ${facts.detail || where}` }, picture(facts, { room, every: true }));
  made.append(element("span", { class: "caption" }, facts.detail || endOf(where)));
  made.addEventListener("click", () => set({ record: facts.record }));
  if (!facts.neighbors.length) return made;
  return element("div", {}, made, element("div", { class: "thumbs", role: "group", "aria-label": "images like it" }, ...facts.neighbors.map((tile) => thumb(tile))));
}

const list = (words) => [words.slice(0, -1).join(", "), words.at(-1)].filter(Boolean).join(" and ");
const ofNeighbors = ({ kind }) => ["outlier", "label-neighbors"].includes(kind.split(".")[0]);

// What the problems were told by.
function compared(problems, notes) {
  const masks = Object.keys(pack.masks).length ? ["masks"] : [], maps = pack.maps.length ? ["maps"] : [], figures = pack.figures.length || !notes.some((note) => note.includes("no fingerprint")) ? ["figures of the images"] : [];
  return ["labels", ...masks, ...maps, "digests of files", ...figures, ...(problems.some(ofNeighbors) ? ["embeddings"] : [])];
}

// What would show more, where this pack lacks it.
function hints(problems) {
  const found = [];
  if (!pack.embeddings.length) found.push("outliers and wrong labels by an embedding (packer attach PACK vectors.npy --as NAME)");
  else if (!problems.some(ofNeighbors)) found.push("outliers and wrong labels by its embedding (tab Map)");
  if (!pack.predictions.length && pack.fields.some((field) => ["boxes", "label"].includes(field))) found.push("errors of a model (packer attach PACK predictions.csv --as NAME --kind boxes or labels)");
  return found.length ? [element("p", { class: "note" }, `packer view also finds ${list(found)}.`)] : [];
}

function content({ problems, notes }) {
  const parts = notes.map((note) => element("p", { class: "note" }, `Not checked: ${note}`));
  if (!problems.length) parts.push(element("p", { class: "nothing" }, "No problems found: no equal images, no odd boxes, no class without images."));
  const serious = problems.filter((problem) => problem.level !== "note").length;
  if (problems.length) parts.unshift(element("p", { class: "note" }, `${problems.length === 1 ? "1 kind of problem" : `${problems.length} kinds of problems`} in ${counted(pack.records, "record")}, the most serious first. Only ${list(compared(problems, notes))} were compared${problems.some(ofNeighbors) ? "" : ": no model"}.`));
  setCount("problems", serious);
  return [...parts, element("div", { class: "problems" }, ...problems.map(card)), ...hints(problems)];
}

export const tab = {
  id: "problems",
  name: "Problems",
  async show(panel) {
    const page = panel.querySelector(".page") ?? element("div", { class: "page" }, element("p", { class: "note", role: "status" }, "looking through all labels ..."));
    if (!page.parentElement) panel.replaceChildren(page);
    const found = await ask("problems"), said = JSON.stringify(found);
    if (said === shown) return; // what an embedding shows may have been found since
    page.replaceChildren(...content(found));
    pile(page.querySelector(".problems"));
    shown = said;
  },
};
