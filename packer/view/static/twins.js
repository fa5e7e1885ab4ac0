// Boxes in the same place, such as an object that was drawn twice: they are told apart by lines and numbers.
const SAME = 0.9; // intersection over union
const found = new WeakMap();

function overlap(a, b) {
  const wide = Math.min(a[2], b[2]) - Math.max(a[0], b[0]), high = Math.min(a[3], b[3]) - Math.max(a[1], b[1]);
  if (wide <= 0 || high <= 0) return a.every((value, n) => value === b[n]) ? 1 : 0;
  const both = wide * high;
  return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both);
}

// Of each box that has another in its place: which one of them it is (1, 2, ...), and the number of the first of them.
export function twinsOf(facts) {
  if (!facts.boxes) return new Map();
  if (!found.has(facts.boxes)) found.set(facts.boxes, among(facts.boxes));
  return found.get(facts.boxes);
}

function among(boxes) {
  const twins = new Map(), whole = boxes.map((box) => !box.includes(null));
  boxes.forEach((box, n) => {
    if (!whole[n] || twins.has(n)) return;
    const others = boxes.map((_, m) => m).filter((m) => m > n && whole[m] && !twins.has(m) && overlap(box, boxes[m]) >= SAME);
    if (others.length) [n, ...others].forEach((m, at) => twins.set(m, [at + 1, n]));
  });
  return twins;
}

// The box as it is drawn: all but the first are larger, by pixels of the screen, so that they do not hide each other.
const GROWS = 5;
export function grown(box, twin, scale) {
  const by = twin > 1 ? ((twin - 1) * GROWS) / scale : 0;
  return [box[0] - by, box[1] - by, box[2] + by, box[3] + by];
}
