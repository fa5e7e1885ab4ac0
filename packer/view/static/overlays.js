// What is laid over images, such as masks: how opaque, on or off, and which one, if there are several.
import { drawn, element } from "./draw.js";
import { bind, declare, get, onchange, pack, set } from "./state.js";

declare({ opacity: 55, overlays: true, overlay: "" });

const has = () => pack.overlays.length > 0 || pack.fields.includes("rles");

// The controls, to stand in several places; none for a pack without overlays.
export function controls() {
  if (!has()) return "";
  const slider = element("input", { type: "range", min: 0, max: 100, "aria-label": "opacity of overlays", title: "opacity" });
  const shown = element("input", { type: "checkbox", title: "key m" }), which = element("select", { "aria-label": "overlay" });
  which.append(...pack.overlays.map((name) => element("option", { value: name }, name)));
  which.hidden = pack.overlays.length < 2;
  bind(slider, "opacity", { replace: true });
  slider.addEventListener("input", () => { fade(slider.value); });
  bind(shown, "overlays", { replace: true });
  which.addEventListener("change", () => set({ overlay: which.value === pack.overlays[0] ? "" : which.value }, { replace: true }));
  const show = () => { which.value = drawn.overlay; };
  onchange(["overlay"], show);
  show();
  return element("span", { class: "overlays", role: "group", "aria-label": "overlays" }, element("label", {}, shown, " overlays"), which, slider);
}

const fade = (percent) => document.body.style.setProperty("--opacity", percent / 100);

// Follow the address; `changed` is called when another overlay is chosen.
export function followOverlays(changed) {
  const look = () => { fade(get("opacity")); document.body.classList.toggle("no-overlays", !get("overlays")); };
  const choose = () => { drawn.overlay = pack.overlays.includes(get("overlay")) ? get("overlay") : pack.overlays[0]; };
  onchange(["opacity", "overlays"], look);
  onchange(["overlay"], () => { choose(); changed(); });
  look(); choose();
}

// Return whether the key was this: off and on.
export function overlayKey(event) {
  if (event.key !== "m" || !has() || event.target.matches("select")) return false;
  set({ overlays: !get("overlays") }, { replace: true });
  return true;
}
