// Batches as a training loop gets them, after crop and flip.
import { ask, caption, complain, element, picture } from "./draw.js";

const $ = (id) => document.getElementById(`loop-${id}`);

export class Loop {
  constructor(open) {
    this.open = open; this.wish = 0; this.batches = 1;
    for (const id of ["crop", "side", "flip", "samples", "seed", "epoch", "batch"]) $(id).addEventListener("change", () => this.show());
    $("back").addEventListener("click", () => this.step(-1));
    $("next").addEventListener("click", () => this.step(1));
    $("options").addEventListener("submit", (event) => event.preventDefault());
  }

  step(by) {
    const batch = Math.max(0, Math.min(this.batches - 1, Number($("batch").value) + by));
    $("batch").value = batch;
    this.show();
  }

  async show() {
    const wish = (this.wish += 1);
    $("count").textContent = "loading ...";
    const given = { flip: $("flip").checked ? 1 : 0, crop: $("crop").value };
    for (const id of ["side", "samples", "seed", "epoch", "batch"]) given[id] = $(id).value || 0;
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
    made.addEventListener("click", () => this.open(sample.record));
    return made;
  }
}
