// Batches as a training loop gets them, after crop and flip.
import { ask, caption, complain, element, picture } from "./draw.js";
import { bind, declare, get, onchange, pack, set } from "./state.js";

const OPTIONS = ["crop", "side", "flip", "samples", "seed", "epoch", "batch"];
const $ = (id) => document.getElementById(`loop-${id}`);

export class Loop {
  constructor() {
    this.wish = 0; this.batches = 1;
    // an image smaller than the usual crop would only be blown up
    const side = pack.shape ? Math.min(224, pack.shape[0], pack.shape[1]) : 224;
    declare({ crop: "random", side, flip: true, samples: 16, seed: 0, epoch: 0, batch: 0 });
    for (const name of OPTIONS) bind($(name), name);
    onchange(OPTIONS, () => this.show());
    $("back").addEventListener("click", () => this.step(-1));
    $("next").addEventListener("click", () => this.step(1));
    $("options").addEventListener("submit", (event) => event.preventDefault());
  }

  step(by) {
    set({ batch: Math.max(0, Math.min(this.batches - 1, get("batch") + by)) });
  }

  async show() {
    const wish = (this.wish += 1);
    $("count").textContent = "loading ...";
    const given = Object.fromEntries(OPTIONS.map((name) => [name, Number.isInteger(get(name)) || name === "crop" ? get(name) : Number(get(name))]));
    try {
      const facts = await ask("batch", given);
      if (wish !== this.wish) return;
      complain(null);
      this.batches = facts.batches;
      $("count").textContent = `${facts.batches.toLocaleString("en")} batches per epoch`;
      $("line").textContent = facts.code;
      $("grid").replaceChildren(...facts.samples.map((sample) => this.tile(sample)));
    } catch (error) {
      if (wish !== this.wish) return;
      $("count").textContent = ""; $("line").textContent = "";
      $("grid").replaceChildren();
      complain(error);
    }
  }

  tile(sample) {
    const made = element("div", { class: "tile", title: `record ${sample.record}, ${sample.source}`, "data-record": sample.record }, picture(sample), caption(sample));
    made.addEventListener("click", () => set({ record: sample.record }));
    return made;
  }
}

let loop;

export const tab = {
  id: "batches",
  name: "Batches",
  once: true,
  async show() { await (loop ??= new Loop()).show(); },
  key(event) {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return false;
    loop?.step(event.key === "ArrowRight" ? 1 : -1);
    return true;
  },
};
