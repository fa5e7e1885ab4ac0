// Choose cells of a chart: click or drag, or move by arrows, with Shift to extend, and press Enter.
import { svg } from "./draw.js";

// `frame`: x, y, width and height of all cells in the chart; `size`: columns and rows; `says(from, to)`: the text about the cells
// between two corners [column, row], both included; `choose(from, to, shifted)`: show their records; `line`: the element that has the text
// meanwhile; `single`: only one cell can be chosen.
export function brush(chart, options) { new Brush(chart, options); return chart; }

class Brush {
  constructor(chart, { frame, size, says, choose, line, single = false }) {
    Object.assign(this, { chart, frame, size, says, choose, line, single, from: null, to: null, held: false, idle: line.textContent });
    this.marked = svg("rect", { class: "brushed", "pointer-events": "none" });
    chart.classList.add("brush");
    for (const [name, value] of Object.entries({ tabindex: 0, role: "group", "aria-roledescription": "chart to choose from: arrows, Shift and arrows, Enter" })) chart.setAttribute(name, value);
    line.setAttribute("role", "status");
    chart.addEventListener("pointerdown", (event) => { if (event.button === 0) { this.held = true; chart.setPointerCapture(event.pointerId); this.mark(this.cellAt(event)); } });
    chart.addEventListener("pointermove", (event) => { const cell = this.cellAt(event); this.mark(this.held && !single ? this.from : cell, cell); });
    chart.addEventListener("pointerup", (event) => { if (this.held) { this.held = false; this.go(event); } });
    chart.addEventListener("pointercancel", () => this.clear());
    for (const kind of ["pointerleave", "blur"]) chart.addEventListener(kind, () => { if (!this.held) this.clear(); });
    chart.addEventListener("keydown", (event) => { if (this.key(event)) { event.preventDefault(); event.stopPropagation(); } });
  }

  cellAt(event) {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(this.chart.getScreenCTM().inverse()), { x, y, width, height } = this.frame;
    return this.inside([Math.floor(((point.x - x) / width) * this.size[0]), Math.floor(((point.y - y) / height) * this.size[1])]);
  }

  inside(cell) { return cell.map((at, axis) => Math.max(0, Math.min(this.size[axis] - 1, at))); }

  mark(from, to = from) {
    this.from = from; this.to = to;
    const [[left, top], [right, bottom]] = this.corners(), { x, y, width, height } = this.frame, [columns, rows] = this.size;
    const place = { x: x + (left * width) / columns, y: y + (top * height) / rows, width: ((right - left + 1) * width) / columns, height: ((bottom - top + 1) * height) / rows };
    for (const [name, value] of Object.entries(place)) this.marked.setAttribute(name, value);
    this.chart.append(this.marked);
    this.line.textContent = this.says(...this.corners());
  }

  corners() { return [Math.min, Math.max].map((of) => [0, 1].map((axis) => of(this.from[axis], this.to[axis]))); }

  clear() { this.marked.remove(); this.from = this.to = null; this.held = false; this.line.textContent = this.idle; }

  go(event) { if (this.from) this.choose(...this.corners(), event.shiftKey); }

  key(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    if (step && (this.size[1] > 1 || step[0])) {
      const to = this.to ? this.inside(this.to.map((at, axis) => at + step[axis])) : [0, 0];
      this.mark(event.shiftKey && this.from && !this.single ? this.from : to, to);
    } else if (event.key === "Enter" || event.key === " ") this.go(event);
    else if (event.key === "Escape" && this.from) this.clear();
    else return false;
    return true;
  }
}
