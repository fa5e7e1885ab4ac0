// The grid of tiles: only those in sight are in the document; tiles are fetched in blocks as one scrolls.
import { caption, drawn, element, picture } from "./draw.js";
import { isMarked } from "./marked.js";
import { ask, complain } from "./server.js";
import { badge } from "./tags.js";

const BLOCK = 24;
const BLOCKS_KEPT = 60;
const GAP = 8;
const CAPTION = 28, NAME = 18;
// browsers cannot make elements much higher than this: beyond, the scroll bar is stretched
const HIGHEST = 8_000_000;

export class Grid {
  constructor(scroller, canvas, { open, counted, marked, refused }) {
    Object.assign(this, { scroller, canvas, open, counted, marked, refused });
    this.query = {}; this.warning = null; this.count = 0; this.size = 160; this.naming = ""; this.at = 0; this.wish = 0;
    this.tiles = new Map(); this.blocks = new Map(); this.asked = new Map();
    scroller.addEventListener("scroll", () => this.schedule());
    new ResizeObserver(() => { this.keep(() => this.measure()); }).observe(scroller);
    canvas.addEventListener("click", (event) => {
      const tile = event.target.closest(".tile");
      if (!tile) return;
      const before = this.at;
      this.select(Number(tile.dataset.place));
      if (event.shiftKey) this.marked(before, this.at); else this.open(this.at);
    });
  }

  side() { return Math.min(512, Math.ceil((this.size * Math.min(2, devicePixelRatio)) / 40) * 40); }

  async show(query) {
    this.query = query; this.wish += 1;
    drawn.focus = new Set((query.class ?? []).map(Number).filter((id) => id >= 0));
    const wish = this.wish;
    this.forget();
    try {
      const first = await ask("tiles", { ...query, start: 0, count: BLOCK, side: this.side() });
      if (wish !== this.wish) return;
      complain(this.warning); this.warning = null;
      this.count = first.count; this.sets = first.sets;
      this.blocks.set(0, first.tiles);
    } catch (error) {
      if (wish !== this.wish || this.refused(error)) return;
      this.count = 0; this.sets = {}; complain(error);
    }
    this.at = 0;
    this.scroller.scrollTop = 0;
    this.clear(); this.counted(this.count, this.sets); this.measure();
  }

  forget() {
    for (const stop of this.asked.values()) stop.abort();
    this.asked.clear(); this.blocks.clear();
  }

  clear() { for (const tile of this.tiles.values()) tile.remove(); this.tiles.clear(); }

  // Draw the tiles again, as other classes are drawn.
  redraw() { for (const tile of this.tiles.values()) tile.look = null; this.schedule(); }

  resize(size) { this.keep(() => { this.size = size; this.forget(); this.clear(); this.measure(); }); }

  // The same records in another look.
  repaint(query) { this.keep(() => { this.query = query; this.forget(); for (const tile of this.tiles.values()) tile.look = null; }); }

  // `naming`: the fact that stands below the classes, such as the file; "" for none
  name(naming) { this.keep(() => { this.naming = naming; this.clear(); this.measure(); }); }

  below() { return CAPTION + (this.naming ? NAME : 0); }

  keep(change) {
    const place = this.columns ? Math.floor(this.top() / this.step) * this.columns : 0;
    change();
    this.toTop(Math.floor(place / this.columns) * this.step);
    this.schedule();
  }

  measure() {
    const room = this.canvas.clientWidth;
    if (!room) return;
    this.columns = Math.max(1, Math.floor((room + GAP) / (this.size + GAP)));
    this.width = (room - GAP * (this.columns - 1)) / this.columns;
    this.step = this.size + this.below() + GAP;
    this.total = Math.ceil(this.count / this.columns) * this.step + GAP;
    this.canvas.style.height = `${Math.min(this.total, HIGHEST)}px`;
    for (const [place, tile] of this.tiles) this.lay(tile, place);
    this.schedule();
  }

  // the place in the whole grid that is at the top of the window, pixels
  stretch() {
    const seen = this.scroller.clientHeight;
    return this.total > HIGHEST ? (this.total - seen) / (HIGHEST - seen) : 1;
  }
  top() { return this.scroller.scrollTop * this.stretch(); }
  toTop(pixels) { this.scroller.scrollTop = pixels / this.stretch(); }

  schedule() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  range() {
    const top = this.top(), seen = this.scroller.clientHeight;
    const first = Math.max(0, Math.floor(top / this.step) - 1) * this.columns;
    const last = Math.min(this.count, Math.ceil((top + seen) / this.step + 1) * this.columns);
    return [Math.min(first, this.count), last];
  }

  draw() {
    if (!this.columns || !this.scroller.clientHeight) return;
    const [first, last] = this.range();
    for (const [place, tile] of this.tiles) if (place < first || place >= last) { tile.remove(); this.tiles.delete(place); }
    for (let place = first; place < last; place += 1) {
      let tile = this.tiles.get(place);
      if (!tile) {
        tile = element("div", { class: "tile", role: "option", id: `tile-${place}`, "data-place": place, "aria-selected": place === this.at });
        this.tiles.set(place, tile);
        this.canvas.append(tile);
      }
      this.lay(tile, place);
      this.fill(tile, place);
    }
    this.fetchBlocks(first, last);
  }

  lay(tile, place) {
    const row = Math.floor(place / this.columns) * this.step, column = place % this.columns;
    tile.style.transform = `translate(${column * (this.width + GAP)}px, ${GAP + row - this.top() + this.scroller.scrollTop}px)`;
    tile.style.width = `${this.width}px`; tile.style.height = `${this.size + this.below()}px`;
  }

  fill(tile, place) {
    const facts = this.blocks.get(Math.floor(place / BLOCK))?.[place % BLOCK];
    const look = `${this.width} ${this.size}`; // names are placed for this size
    if (!facts || (tile.facts === facts && tile.look === look)) return;
    tile.facts = facts; tile.look = look;
    tile.dataset.record = facts.record;
    tile.title = `${facts.path ?? facts.key}  ${facts.width} x ${facts.height}`;
    tile.classList.toggle("marked", isMarked(facts.record));
    tile.replaceChildren(picture(facts, { room: [this.width - 6, this.size] }), caption(facts), ...(this.naming ? [element("div", { class: "caption name" }, element("bdi", {}, String(facts[this.naming] ?? facts.key)))] : []));
    badge(tile);
    tile.setAttribute("aria-label", facts.error ? `${facts.key}, damaged` : `${tile.title} ${tile.textContent}`);
    tile.setAttribute("aria-posinset", place + 1); tile.setAttribute("aria-setsize", this.count);
  }

  // The record of the selected tile; -1 if that is not there yet.
  record() { return this.blocks.get(Math.floor(this.at / BLOCK))?.[this.at % BLOCK]?.record ?? -1; }

  fetchBlocks(first, last) {
    const from = Math.floor(first / BLOCK), to = Math.ceil(last / BLOCK);
    for (const [block, stop] of this.asked) if (block < from || block >= to) { stop.abort(); this.asked.delete(block); }
    for (let block = from; block < to; block += 1) {
      if (this.blocks.has(block)) { // was used: keep it longest
        const tiles = this.blocks.get(block);
        this.blocks.delete(block); this.blocks.set(block, tiles);
      } else if (!this.asked.has(block)) this.fetchBlock(block);
    }
    for (const block of this.blocks.keys()) {
      if (this.blocks.size <= BLOCKS_KEPT) break;
      this.blocks.delete(block);
    }
  }

  async fetchBlock(block) {
    const stop = new AbortController();
    this.asked.set(block, stop);
    try {
      const wanted = { ...this.query, start: block * BLOCK, count: BLOCK, side: this.side() };
      const { tiles } = await ask("tiles", wanted, stop.signal);
      if (this.asked.get(block) !== stop) return;
      this.asked.delete(block);
      this.blocks.set(block, tiles);
      this.schedule();
    } catch (error) {
      if (this.asked.get(block) === stop) this.asked.delete(block);
      complain(error);
    }
  }

  select(place) {
    if (!this.count) return;
    this.at = Math.max(0, Math.min(this.count - 1, place));
    for (const [other, tile] of this.tiles) tile.setAttribute("aria-selected", other === this.at);
    this.scroller.setAttribute("aria-activedescendant", `tile-${this.at}`);
    const top = this.top(), seen = this.scroller.clientHeight, row = Math.floor(this.at / this.columns) * this.step;
    if (row < top) this.toTop(row);
    else if (row + this.step + GAP > top + seen) this.toTop(row + this.step + GAP - seen);
    this.schedule();
  }

  page() { return Math.max(1, Math.floor(this.scroller.clientHeight / this.step)) * this.columns; }
}
