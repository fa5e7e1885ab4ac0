// The figures of images that fingerprints hold: the orders and ranges that they add to those of the records.
import { element } from "./draw.js";
import { pack } from "./state.js";

export const FIGURES = ["brightness", "contrast", "focus", "entropy", "colorfulness", "saturated"];

// Add the figures that this pack has to the lists of orders and of ranges.
export function offerFigures(sorts, ranges) {
  for (const { name, title, least, most } of pack.figures) {
    sorts.append(element("option", { value: `least-${name}` }, `${least} first`), element("option", { value: `most-${name}` }, `${most} first`));
    ranges.append(element("option", { value: name }, title));
  }
}
