// Batches as a training loop gets them, after crop and flip, beside their sources.
import { copyable } from "./copy.js";
import { caption, element, picture } from "./draw.js";
import { ask, complain, isBusy } from "./server.js";
import { bind, declare, get, onchange, pack, set } from "./state.js";

const OPTIONS = ["crop", "side", "flip", "samples", "seed", "epoch", "batch"];
const IDLE_MS = 1000, TICK_MS = 1000;
const $ = (id) => document.getElementById(`batch-${id}`);

class Batches {
  constructor() {
    this.wish = 0; this.batches = 1; this.answers = new Map();
    // an image smaller than the usual crop would only be blown up
    const side = pack.shape ? Math.min(224, pack.shape[0], pack.shape[1]) : 224;
    declare({ crop: "random", side, flip: true, samples: 16, seed: 0, epoch: 0, batch: 0, sources: true });
    for (const name of [...OPTIONS, "sources"]) bind($(name), name);
    onchange(OPTIONS, () => this.show());
    const look = () => $("grid").classList.toggle("alone", !get("sources"));
    onchange(["sources"], look); look();
    $("back").addEventListener("click", () => this.step(-1));
    $("next").addEventListener("click", () => this.step(1));
    $("options").addEventListener("submit", (event) => event.preventDefault());
  }

  step(by) {
    set({ batch: Math.max(0, Math.min(this.batches - 1, get("batch") + by)) });
  }

  // The answer for these options; the latest is kept, so that one that was asked for in advance is there at once.
  facts() {
    const given = Object.fromEntries(OPTIONS.map((name) => [name, name === "crop" ? get(name) : Number(get(name))]));
    const key = JSON.stringify(given);
    if (!this.answers.has(key)) {
      const asked = ask("batch", given);
      this.answers = new Map([[key, asked]]);
      asked.catch(() => { this.answers.delete(key); });
    }
    return this.answers.get(key);
  }

  async show() {
    const wish = (this.wish += 1);
    $("count").textContent = "loading ...";
    const waited = this.shown ? () => {} : waiting($("grid"));
    let facts, error;
    try { facts = await this.facts(); } catch (caught) { error = caught; }
    waited();
    if (wish !== this.wish) return;
    for (const name of OPTIONS) this.mark(name, error?.where === name ? error.message.replace(`${name}: `, "") : "");
    const all = this.batches.toLocaleString("en");
    if (error) { // what was shown stays
      $("count").textContent = $("grid").children.length ? `not changed; ${all} batches per epoch` : "";
      complain(OPTIONS.includes(error.where) ? null : error);
      return;
    }
    complain(null);
    this.batches = facts.batches;
    $("count").textContent = facts.batches === 1 ? "1 batch per epoch" : `${facts.batches.toLocaleString("en")} batches per epoch`;
    $("code").replaceChildren(copyable(facts.code, "code of this batch"));
    $("grid").replaceChildren(...facts.samples.map(pair));
    this.shown = true;
  }

  // Mark a field as wrong, with the message below it; "": as right.
  mark(name, problem) {
    const field = $(name);
    document.getElementById(`batch-${name}-wrong`)?.remove();
    if (problem) {
      field.parentElement.append(element("span", { class: "wrong", id: `batch-${name}-wrong`, role: "alert" }, problem));
      field.setAttribute("aria-invalid", "true"); field.setAttribute("aria-describedby", `batch-${name}-wrong`);
    } else { field.removeAttribute("aria-invalid"); field.removeAttribute("aria-describedby"); }
  }
}

// Say in an element what the first batch waits for, and how long already; returns a function that ends it.
function waiting(inside) {
  const since = performance.now(), seconds = element("span", { "aria-hidden": "true" });
  const tick = setInterval(() => { seconds.textContent = ` ${Math.round((performance.now() - since) / 1000)} s`; }, TICK_MS);
  inside.replaceChildren(element("div", { class: "nothing waiting", role: "status" }, element("p", {}, "Loading PyTorch and the first batch. PyTorch takes some seconds, once.", seconds), element("progress", { "aria-label": "loading the first batch" })));
  return () => { clearInterval(tick); inside.replaceChildren(); };
}

function pair(sample) {
  const half = (facts, name) => element("div", { class: "half" }, picture(facts), element("div", { class: "note" }, name));
  const made = element("button", { type: "button", class: "tile pair", title: `record ${sample.record}, ${sample.source}`, "aria-label": `open record ${sample.record}`, "data-record": sample.record },
    element("div", { class: "halves" }, half(sample.before, "source"), half(sample, "sample")), caption(sample));
  made.addEventListener("click", () => set({ record: sample.record }));
  return made;
}

let batches;
const made = () => (batches ??= new Batches());

// Call `work` once when nobody has touched the page for a while, and it has what it shows.
function whenIdle(work) {
  const events = ["pointermove", "pointerdown", "wheel", "scroll", "keydown"];
  let timer;
  const again = () => { clearTimeout(timer); timer = setTimeout(done, IDLE_MS); };
  const done = () => { if (isBusy()) { again(); return; } for (const name of events) removeEventListener(name, again, true); work(); };
  for (const name of events) addEventListener(name, again, { capture: true, passive: true });
  again();
}

export const tab = {
  id: "batches",
  name: "Batches",
  once: true,
  async show() { await made().show(); },
  // PyTorch takes a second or two to load: ask for the first batch before somebody wants it.
  prepare() {
    const ahead = () => made().facts().catch(() => {}); // shown when the tab is
    whenIdle(ahead);
    for (const name of ["pointerenter", "focus"]) document.getElementById("tab-of-batches").addEventListener(name, ahead, { once: true });
  },
  key(event) {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return false;
    batches?.step(event.key === "ArrowRight" ? 1 : -1);
    return true;
  },
};
