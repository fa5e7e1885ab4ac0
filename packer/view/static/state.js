// The state of the page is its address: tab, filters, open record. So back, reload and a shared address work.
const defaults = new Map(), listeners = [];
let address = new URLSearchParams(location.search);

// The facts of the pack that is shown, as of api/pack.
export const pack = {};

// Declare values by name, with their defaults. The type of the default is the type of the value: text, number, boolean,
// or list of texts. Defaults are left out of the address.
export function declare(values) { for (const [name, value] of Object.entries(values)) defaults.set(name, value); }

export function get(name) {
  const fallback = defaults.get(name), text = address.get(name);
  if (text === null) return fallback;
  if (Array.isArray(fallback)) return text.split(",").filter(Boolean);
  if (typeof fallback === "boolean") return text === "1";
  if (typeof fallback === "number") return text.trim() && Number.isFinite(Number(text)) ? Number(text) : fallback;
  return text;
}

function written(value) { return typeof value === "boolean" ? String(Number(value)) : String(value); }

// Change values. Each change is a step of the browser's history; with `replace`, the current step is changed.
export function set(changes, { replace = false } = {}) {
  const next = new URLSearchParams(address);
  for (const [name, value] of Object.entries(changes)) {
    if (!defaults.has(name)) throw new Error(`undeclared: ${name}`);
    if (written(value) === written(defaults.get(name))) next.delete(name);
    else next.set(name, written(value));
  }
  next.sort();
  if (next.toString() === address.toString()) return;
  const text = next.toString().replaceAll("%2C", ",").replaceAll("%3A", ":");
  history[replace ? "replaceState" : "pushState"](null, "", text ? `?${text}` : location.pathname);
  moveTo(next);
}

export function reset(names, changes = {}, options = {}) {
  set({ ...Object.fromEntries(names.map((name) => [name, defaults.get(name)])), ...changes }, options);
}

// Call `listener` after one or several of these values have changed, by `set` or by back and forward.
export function onchange(names, listener) { listeners.push([names, listener]); }

function moveTo(next) {
  const before = address;
  address = next;
  const changed = (name) => before.get(name) !== next.get(name);
  for (const [names, listener] of listeners) if (names.some(changed)) listener();
}

addEventListener("popstate", () => moveTo(new URLSearchParams(location.search)));

// Tie a form control to a value, both ways.
export function bind(control, name, { replace = false, changed = (value) => ({ [name]: value }) } = {}) {
  const key = control.type === "checkbox" ? "checked" : "value";
  const show = () => { control[key] = get(name); };
  control.addEventListener("change", () => {
    const value = key === "checked" || typeof defaults.get(name) !== "number" ? control[key] : Number(control.value);
    set(changed(value), { replace });
  });
  onchange([name], show);
  show();
}
