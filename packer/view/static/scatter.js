// Points on a canvas, up to millions: drawn pixel by pixel, so that no graphics card is needed. Drag, wheel, pinch and keys
// move it; with Shift, or while `selecting`, a drag draws around points.
// While the map moves, a frame draws as many points as it has time for: they are shuffled, so these are a fair sample.
const FRAME_MS = 12, FEWEST = 50_000, SETTLED_MS = 150;
const SPAN = 65535, NOWHERE = 65535, CELLS = 128, NEAR = 14, CLICK = 5, FAINT = 0x30808080, MOST_CORNERS = 100;

export class Scatter {
  // `hovered(record, x, y)`: -1 for none; `picked(record)` at a click; `selected(corners)`: places of a polygon, or null
  constructor(canvas, { hovered, picked, selected }) {
    Object.assign(this, { canvas, hovered, picked, selected });
    this.context = canvas.getContext("2d"); this.count = 0; this.frames = []; this.selecting = false; this.corners = null;
    this.pointers = new Map(); this.path = null; this.view = { x: SPAN / 2, y: SPAN / 2, scale: 0.01 }; this.lit = null; this.home = null;
    new ResizeObserver(() => this.measure()).observe(canvas.parentElement);
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, (event) => this.up(event));
    canvas.addEventListener("pointerleave", () => { if (!this.pointers.size) this.hovered(-1); });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), event.offsetX, event.offsetY);
    }, { passive: false });
  }

  // x and y of all records; `home` is the part that is shown first. In the order of the records, the last class would hide
  // the others: points are shuffled, the same way each time.
  place(places, home) {
    const all = places.length / 2, order = new Uint32Array(all);
    let count = 0, state = 1;
    for (let record = 0; record < all; record += 1) {
      if (places[record] === NOWHERE) continue;
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      const other = Math.floor((state / 2 ** 32) * (count + 1));
      order[count] = order[other]; order[other] = record; count += 1;
    }
    this.count = count; this.records = order.subarray(0, count);
    this.x = new Uint16Array(count); this.y = new Uint16Array(count);
    for (let n = 0; n < count; n += 1) { this.x[n] = places[order[n]]; this.y[n] = places[all + order[n]]; }
    this.index(); this.home = home; this.fit(); this.schedule();
  }

  // The number of each record, and the color of each number: [red, green, blue].
  paint(codes, colorOf) {
    this.codes = new Uint16Array(this.count);
    const colors = new Map();
    for (let n = 0; n < this.count; n += 1) this.codes[n] = codes[this.records[n]];
    this.palette = new Uint32Array(65536);
    for (const code of this.codes) if (!colors.has(code)) colors.set(code, colorOf(code));
    for (const [code, [r, g, b]] of colors) this.palette[code] = (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
    this.schedule();
  }

  // Only these numbers keep their colors; null: all.
  light(codes) {
    this.lit = codes ? new Uint8Array(65536) : null;
    for (const code of codes ?? []) this.lit[code] = 1;
    this.schedule();
  }

  // Sort the points into cells, to find the one under the pointer.
  index() {
    const { x, y, count } = this, begins = new Uint32Array(CELLS * CELLS + 1), cell = (n) => (y[n] >> 9) * CELLS + (x[n] >> 9);
    for (let n = 0; n < count; n += 1) begins[cell(n) + 1] += 1;
    for (let n = 0; n < CELLS * CELLS; n += 1) begins[n + 1] += begins[n];
    const next = begins.slice(), items = new Uint32Array(count);
    for (let n = 0; n < count; n += 1) { const at = cell(n); items[next[at]] = n; next[at] += 1; }
    this.begins = begins; this.items = items;
  }

  measure() {
    const { clientWidth, clientHeight } = this.canvas.parentElement, ratio = Math.min(2, devicePixelRatio);
    if (!clientWidth || !clientHeight) return;
    const first = !this.width;
    this.ratio = ratio; this.width = clientWidth; this.height = clientHeight;
    this.canvas.width = Math.round(clientWidth * ratio); this.canvas.height = Math.round(clientHeight * ratio);
    this.image = this.context.createImageData(this.canvas.width, this.canvas.height);
    this.pixels = new Uint32Array(this.image.data.buffer); this.hits = new Uint16Array(this.pixels.length);
    if (first) this.fit(); else this.schedule();
  }

  fit() {
    if (!this.home || !this.width) return;
    const [x1, y1, x2, y2] = this.home, wide = Math.max(1, x2 - x1), high = Math.max(1, y2 - y1);
    this.view = { x: (x1 + x2) / 2, y: (y1 + y2) / 2, scale: 0.9 * Math.min(this.width / wide, this.height / high) };
    this.base = this.view.scale; this.schedule();
  }

  zoom(factor, at = this.width / 2, over = this.height / 2) {
    const { view } = this, scale = Math.max(this.base / 4, Math.min(this.base * 400, view.scale * factor));
    const dx = at - this.width / 2, dy = over - this.height / 2;
    view.x += dx / view.scale - dx / scale; view.y += dy / view.scale - dy / scale; view.scale = scale;
    this.hurry();
  }

  pan(dx, dy) { this.view.x -= dx / this.view.scale; this.view.y -= dy / this.view.scale; this.hurry(); }

  hurry() {
    clearTimeout(this.settling);
    this.hurried = true;
    this.settling = setTimeout(() => { this.hurried = false; this.schedule(); }, SETTLED_MS);
    this.schedule();
  }

  toPlace([x, y]) { return [this.view.x + (x - this.width / 2) / this.view.scale, this.view.y + (y - this.height / 2) / this.view.scale].map((v) => Math.max(0, Math.min(SPAN - 1, Math.round(v)))); }
  toScreen([x, y]) { return [(x - this.view.x) * this.view.scale + this.width / 2, (y - this.view.y) * this.view.scale + this.height / 2]; }

  schedule() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  draw() {
    if (!this.count) this.context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (!this.count || !this.codes || !this.pixels) return;
    const begun = performance.now(), { pixels, hits } = this, zoomed = Math.max(1, this.view.scale / this.base);
    pixels.fill(0); hits.fill(0);
    const size = Math.max(1, Math.min(9 * this.ratio, Math.round(Math.sqrt((0.12 * pixels.length * zoomed ** 1.5) / this.count))));
    this.shown = this.hurried ? Math.min(this.count, Math.max(FEWEST, Math.floor(FRAME_MS / this.rate))) : this.count;
    const most = Math.max(...(this.lit ? [this.stamp(size, 0), this.stamp(size, 1)] : [this.stamp(size, 2)]), 1);
    const opacity = new Uint8Array(most + 1), steps = Math.log2(1 + most);
    for (let n = 1; n <= most; n += 1) opacity[n] = Math.min(255, 95 + (160 * Math.log2(1 + n)) / steps);
    for (let n = 0; n < pixels.length; n += 1) if (hits[n]) pixels[n] = ((pixels[n] & 0xffffff) | (opacity[hits[n]] << 24)) >>> 0;
    this.context.putImageData(this.image, 0, 0);
    this.outline();
    this.frames.push(performance.now() - begun); // for whoever measures
    this.rate = this.frames.at(-1) / this.shown;
    if (this.frames.length > 1000) this.frames.splice(0, 500);
  }

  // Draw the points: those that are not lit (0), that are (1), or all (2); return the most that a pixel has.
  stamp(size, which) {
    const { x, y, codes, palette, lit, pixels, hits, shown } = this, { width, height } = this.canvas, scale = this.view.scale * this.ratio;
    const left = width / 2 - this.view.x * scale, top = height / 2 - this.view.y * scale, half = size >> 1, offsets = disc(size, width);
    const right = width - size, bottom = height - size, one = offsets.length === 1;
    let most = 0;
    for (let n = 0; n < shown; n += 1) {
      const at = x[n] * scale + left - half, over = y[n] * scale + top - half;
      if (at < 0 || over < 0 || at >= right || over >= bottom) continue;
      const code = codes[n];
      if (which < 2 && lit[code] !== which) continue;
      const color = which ? palette[code] : FAINT, place = (over | 0) * width + (at | 0);
      if (one) { pixels[place] = color; if ((hits[place] += 1) > most) most = hits[place]; continue; }
      for (let k = 0; k < offsets.length; k += 1) {
        const pixel = place + offsets[k];
        pixels[pixel] = color;
        if ((hits[pixel] += 1) > most) most = hits[pixel];
      }
    }
    return most;
  }

  outline() {
    const path = this.path ?? this.corners?.map((corner) => this.toScreen(corner));
    if (!path) return;
    const { context, ratio } = this;
    context.save(); context.scale(ratio, ratio); context.beginPath();
    path.forEach(([x, y], n) => (n ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.closePath();
    context.fillStyle = "rgb(128 128 128 / 0.15)"; context.fill();
    for (const [color, width] of [["#000", 3.5], ["#fff", 1.5]]) { context.strokeStyle = color; context.lineWidth = width; context.stroke(); }
    context.restore();
  }

  // The record nearest to a place of the screen; -1 if none is near.
  nearest(at, over) {
    if (!this.count) return -1;
    const reach = NEAR / this.view.scale, px = this.view.x + (at - this.width / 2) / this.view.scale, py = this.view.y + (over - this.height / 2) / this.view.scale;
    const cell = (value) => Math.max(0, Math.min(CELLS - 1, Math.floor(value) >> 9));
    let best = reach * reach, found = -1;
    for (let row = cell(py - reach); row <= cell(py + reach); row += 1) {
      const end = this.begins[row * CELLS + cell(px + reach) + 1];
      for (let k = this.begins[row * CELLS + cell(px - reach)]; k < end; k += 1) {
        const n = this.items[k], apart = (this.x[n] - px) ** 2 + (this.y[n] - py) ** 2;
        if (apart < best && (!this.lit || this.lit[this.codes[n]])) { best = apart; found = n; }
      }
    }
    return found < 0 ? -1 : this.records[found];
  }

  down(event) {
    if (event.button) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
    this.path = this.pointers.size === 1 && (this.selecting || event.shiftKey) ? [[event.offsetX, event.offsetY]] : null;
    this.moved = 0;
  }

  move(event) {
    const before = this.pointers.get(event.pointerId), now = [event.offsetX, event.offsetY];
    if (!before) { this.hovered(this.nearest(...now), ...now); return; }
    this.moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
    const [other] = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
    this.pointers.set(event.pointerId, now);
    if (this.path) { this.path.push(now); this.schedule(); return; }
    if (other) {
      const apart = (a) => Math.hypot(a[0] - other[0], a[1] - other[1]);
      this.zoom(apart(now) / Math.max(1, apart(before)), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
      this.pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
    } else this.pan(now[0] - before[0], now[1] - before[1]);
    this.hovered(-1);
  }

  up(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    const path = this.path;
    this.path = null;
    if (this.moved < CLICK && event.type === "pointerup") {
      const record = this.nearest(event.offsetX, event.offsetY);
      if (record >= 0) this.picked(record); else if (this.corners) this.selected(null);
    } else if (path?.length > 2) this.selected(thinned(path).map((corner) => this.toPlace(corner)));
    this.schedule();
  }

  // Return whether it was a key of the map.
  key(key) {
    const step = 60;
    const move = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] }[key];
    if (move) this.pan(...move);
    else if (key === "+" || key === "=") this.zoom(1.4);
    else if (key === "-") this.zoom(1 / 1.4);
    else if (key === "0") this.fit();
    else if (key === "s") this.selected([[0, 0], [this.width, 0], [this.width, this.height], [0, this.height]].map((corner) => this.toPlace(corner)));
    else if (key === "Escape" && this.corners) this.selected(null);
    else return false;
    return true;
  }
}

// The pixels of a round point, from its upper left one.
function disc(size, width) {
  const found = [], middle = (size - 1) / 2;
  for (let y = 0; y < size; y += 1) for (let x = 0; x < size; x += 1) if ((x - middle) ** 2 + (y - middle) ** 2 <= (size / 2) ** 2) found.push(y * width + x);
  return new Int32Array(found);
}

function thinned(path) {
  const kept = path.filter((point, n) => n === 0 || Math.hypot(point[0] - path[n - 1][0], point[1] - path[n - 1][1]) > 0);
  const step = Math.ceil(kept.length / MOST_CORNERS);
  const found = kept.filter((_, n) => n % step === 0);
  return found.length > 2 ? found : kept;
}
