// Text to copy: code, or a command.
import { element } from "./draw.js";

export function copyable(text, label) {
  const code = element("code", {}, text);
  const button = element("button", { type: "button", class: "copy", "aria-label": `copy ${label}` }, "Copy");
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { // not allowed in a frame
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return element("div", { class: "copyable" }, element("pre", { tabindex: 0, "aria-label": label }, code), button);
}
