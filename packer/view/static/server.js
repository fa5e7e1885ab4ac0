// Questions to packer view, and what the page says when it has stopped.
const $ = (id) => document.getElementById(id);
const AGAIN_MS = 2000;
let stopped = false, asked = 0;

// Whether an answer is awaited.
export const isBusy = () => asked > 0;

export async function ask(what, given = {}, signal = undefined) {
  return answer(await reach(`api/${what}?${new URLSearchParams(given)}`, { signal }));
}

// What the server sends as it is.
export async function bytes(path, given = {}) {
  const said = await reach(`${path}?${new URLSearchParams(given)}`, {});
  return said.ok ? said.arrayBuffer() : answer(said);
}

export async function post(what, body) {
  return answer(await reach(`api/${what}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }));
}

async function reach(address, options) {
  asked += 1;
  try { return await fetch(address, options); } catch (error) {
    if (error.name !== "AbortError") wait();
    throw error;
  } finally { asked -= 1; }
}

// The error has `where`: the name of the value that is wrong.
async function answer(said) {
  let facts;
  try { facts = await said.json(); } catch { facts = { error: `packer view answered ${said.status}` }; }
  if (!said.ok) throw Object.assign(new Error(facts.error), { where: facts.where });
  return facts;
}

export function complain(error) {
  if (error?.name === "AbortError" || stopped) return;
  $("problem").hidden = !error;
  $("problem").textContent = error ? error.message : "";
}

// Say that packer view has stopped, and load the page again when it is there at the same address.
function wait() {
  if (stopped) return;
  complain(new Error("packer view has stopped; start it again. With the same --port and --token, this page then continues."));
  stopped = true;
  const look = setInterval(async () => {
    let said;
    try { said = await fetch("api/pack"); } catch { return; }
    clearInterval(look);
    if (said.ok) { location.reload(); return; }
    stopped = false;
    complain(new Error("packer view was started again at another address: open the one that it printed"));
    stopped = true;
  }, AGAIN_MS);
}
