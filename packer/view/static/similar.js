// The records that are similar to one, by an embedding: a row of pictures beside its fields.
import { element } from "./draw.js";
import { showRecords } from "./filters.js";
import { thumb } from "./map.js";
import { ask } from "./server.js";
import { get, pack } from "./state.js";

const COUNT = 9, AT_ONCE = 100_000, WAIT_MS = 250;

// Elements for each embedding. With many records, or those of a URL, they are looked for only when asked.
export function similarTo(record) {
  return pack.embeddings.flatMap(({ name, fetched }) => {
    const row = element("div", { class: "thumbs" }), box = element("div", { class: "similar" }, row);
    const fill = async () => {
      row.replaceChildren(element("p", { class: "note", role: "status" }, "comparing ..."));
      try {
        const found = await ask("similar", { embedding: name, record, count: COUNT, side: 80 });
        const all = element("button", { type: "button" }, "All, the nearest first");
        all.addEventListener("click", () => showRecords({ set: [`similar:${name}.${record}`], sort: "set" }));
        row.replaceChildren(...found.map((tile) => thumb(tile, tile.distance.toFixed(2))));
        if (found.length) box.append(all);
        else row.append(element("p", { class: "note" }, "Its vector has no direction: zeros, or numbers that are not finite."));
      } catch (error) { row.replaceChildren(element("p", { class: "note" }, error.message)); }
    };
    if (pack.records <= AT_ONCE && !fetched) setTimeout(() => { if (get("record") === record) fill(); }, WAIT_MS);
    else {
      const begin = element("button", { type: "button" }, fetched ? `Find similar records (fetches ${fetched})` : "Find similar records");
      begin.addEventListener("click", fill);
      row.append(begin);
    }
    return [element("h3", {}, pack.embeddings.length > 1 ? `similar by ${name}` : "similar"), box];
  });
}
