// The output of an attempt that runs, followed as it is written.
import { BY_PAGE } from "./api.js";

const MOST_SHOWN = 400_000;

function textOf(part) {
  if (part.text !== undefined) return part.text;
  const bytes = Uint8Array.from(atob(part.base64 ?? ""), (letter) => letter.charCodeAt(0));
  return new TextDecoder().decode(bytes);
}

async function follow(section) {
  const places = Object.fromEntries([...section.querySelectorAll("pre.output")].map((pre) => [pre.dataset.stream, pre]));
  for (let running = section.dataset.running === "true"; running;) {
    // A page that nobody sees keeps no connection.
    if (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
    const from = (stream) => places[stream]?.dataset.bytes ?? 0;
    const query = `fence=${section.dataset.fence}&stdout_from=${from("stdout")}&stderr_from=${from("stderr")}&wait_ms=20000`;
    const answer = await fetch(`${section.dataset.output}?${query}`, { headers: BY_PAGE });
    if (!answer.ok) {
      await new Promise((done) => setTimeout(done, 3000));
      continue;
    }
    const said = await answer.json();
    for (const stream of said.streams) {
      const pre = places[stream.stream];
      const text = stream.parts.map(textOf).join("");
      if (!pre || !text) continue;
      const atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 8;
      pre.append(text);
      if (pre.textContent.length > MOST_SHOWN) pre.textContent = pre.textContent.slice(-MOST_SHOWN);
      pre.dataset.bytes = stream.bytes;
      if (atEnd) pre.scrollTop = pre.scrollHeight;
    }
    running = said.running;
  }
}

export function output() {
  const section = document.getElementById("output");
  if (section) follow(section);
}
