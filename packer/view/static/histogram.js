// A histogram with numbers at its axes, from which bars are chosen. Of several packs, it has the share of each in bars side by side.
import { brush } from "./brush.js";
import { card, colorOfPack, counted, many, MOST_COMPARED, packLegend, short, textAt } from "./cards.js";
import { element, svg } from "./draw.js";
import { pack } from "./state.js";

const WIDTH = 360, LEFT = 40, RIGHT = 12, TOP = 22, BASE = 150, TICKS = 5, STEPS = 3;
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

// The largest of 1, 2 and 5 times a power of ten so that `most` has about `count` of them.
function stepOf(most, count) {
  const power = 10 ** Math.floor(Math.log10(most / count));
  return [1, 2, 5, 10].map((by) => by * power).find((step) => most / step <= count + 0.01);
}

// What a card shows of a histogram of the server. `of`: what is counted, [one, several]; `unit`: of the axis; `choose(range)`:
// show what is in a range, as the server writes it.
export function histogramCard(title, histogram, { of, unit = "", note = "", choose }) {
  const { edges, counts, parts, whole } = histogram, compared = parts && parts.length <= MOST_COMPARED;
  const series = compared ? parts.map((part) => part.map((count) => count / Math.max(1, sum(part)))) : [counts];
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${BASE + 36}`, "aria-label": `${title}: histogram` });
  const highest = Math.max(...series.flat(), compared ? 0.001 : 1), scale = compared ? 100 : 1, step = stepOf(highest * scale, STEPS);
  const most = (Math.ceil((highest * scale) / step - 1e-9) * step) / scale; // the axis ends with a number
  yAxis(chart, { most, step, scale }, compared ? `share of ${of[1]}` : of[1]);
  bars(chart, series, most);
  xAxis(chart, histogram, unit || title);
  const line = element("div", { class: "note" }, note);
  const inside = ([from], [to]) => sum(counts.slice(from, to + 1));
  const says = (from, to) => {
    const each = compared ? ` (${parts.map((part) => share(sum(part.slice(from[0], to[0] + 1)) / Math.max(1, sum(part)))).join(", ")})` : "";
    return `${textOf(edges, from[0], to[0], whole)}${unit ? ` ${unit}` : ""}: ${counted(inside(from, to), ...of)}${each}`;
  };
  const go = (from, to) => { if (inside(from, to)) choose(rangeOf(edges, from[0], to[0], whole)); };
  brush(chart, { frame: { x: LEFT, y: TOP, width: WIDTH - LEFT - RIGHT, height: BASE - TOP }, size: [counts.length, 1], says, choose: go, line });
  return card(title, compared ? [chart, packLegend(pack.packs)] : chart, line);
}

const share = (part) => `${(100 * part).toFixed(1)} %`;

// The bars from one to another as the server takes them: 2..5, 2..<5 without the upper edge.
export function rangeOf(edges, from, to, whole = false) {
  if (whole) return `${edges[from]}..${edges[to + 1] - 1}`;
  return `${edges[from]}..${to === edges.length - 2 ? "" : "<"}${edges[to + 1]}`;
}

export function textOf(edges, from, to, whole = false) {
  const last = whole ? edges[to + 1] - 1 : edges[to + 1];
  return whole && last === edges[from] ? short(last) : `${short(edges[from])}${whole ? "–" : " to "}${short(last)}`;
}

function yAxis(chart, { most, step, scale }, name) {
  for (let at = 0; at <= most * scale + 1e-9; at += step) {
    const y = BASE - ((BASE - TOP) * at) / scale / most;
    chart.append(svg("line", { class: at ? "grid" : "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }), textAt(LEFT - 5, y + 4, scale > 1 ? `${short(at)} %` : many(Number(at.toPrecision(6))), "end"));
  }
  chart.append(textAt(2, 11, name, "start"));
}

function bars(chart, series, most) {
  const count = series[0].length, each = (WIDTH - LEFT - RIGHT) / count, wide = Math.max(0.5, (each - 1) / series.length);
  series.forEach((values, number) => values.forEach((value, n) => {
    const high = ((BASE - TOP) * value) / most;
    if (!value) return;
    const bar = svg("rect", { class: "bar-of", x: LEFT + n * each + 0.5 + number * wide, y: BASE - high, width: wide, height: high, rx: Math.min(2, high, wide / 3) });
    if (series.length > 1) bar.style.fill = colorOfPack(number);
    chart.append(bar);
  }));
}

// Numbers at round edges; those of integers are under the middle of their bars.
function xAxis(chart, { edges, whole, log }, name) {
  const count = edges.length - 1, each = (WIDTH - LEFT - RIGHT) / count;
  if (whole) {
    const step = Math.ceil(count / (TICKS + 1));
    for (let n = 0; n < count; n += step) chart.append(textAt(LEFT + (n + 0.5) * each, BASE + 14, textOf(edges, n, n, true)));
  } else for (const n of ticks(edges, log)) chart.append(textAt(LEFT + n * each, BASE + 14, short(edges[n])));
  chart.append(textAt(LEFT + (WIDTH - LEFT - RIGHT) / 2, BASE + 31, name));
}

// Numbers of edges, evenly apart, at round numbers: multiples of their distance, in logarithms if bins are.
function ticks(edges, log) {
  const at = log ? edges.map(Math.log2) : edges, count = edges.length - 1, width = at[Math.min(2, count)] - at[Math.min(1, count - 1)];
  const by = log ? [1, 2, 4, 8, 16, 32, 64] : [1, 2, 5, 10, 20, 50], fits = by.find((many) => count / many <= TICKS + 1) ?? by.at(-1);
  const step = log && at.at(-1) - at[0] >= 2 ? Math.max(fits, Math.round(1 / width)) : fits; // powers of two, if there are some
  const isRound = (value) => Math.abs(value / (step * width) - Math.round(value / (step * width))) < 1e-3;
  return at.map((value, n) => (isRound(value) ? n : -1)).filter((n) => n >= 0);
}
