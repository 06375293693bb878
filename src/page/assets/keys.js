// The keyboard: to the places, through the rows, and to what can be done with them.
const rows = () => [...document.querySelectorAll(".rows tbody tr")];

function move(step) {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((row) => row.classList.contains("here"));
  all[at]?.classList.remove("here");
  const row = all[Math.min(Math.max(at + step, 0), all.length - 1)];
  row.classList.add("here");
  row.scrollIntoView({ block: "nearest" });
  (row.querySelector("th a, td a") ?? row).focus();
}

function openSaved() {
  const menu = document.getElementById("saved");
  if (!menu) return;
  menu.open = true;
  menu.querySelector("a, input").focus();
}

export function keys() {
  let afterG = false;
  const list = document.getElementById("keys");
  document.getElementById("help")?.addEventListener("click", () => list.showModal());
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input:not([type=checkbox]), select, textarea");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (afterG) {
      afterG = false;
      document.querySelector(`nav [data-key="${CSS.escape(event.key)}"]`)?.click();
      return;
    }
    const here = document.querySelector("tr.here");
    const done = {
      "/": () => document.getElementById("kql")?.focus(),
      "?": () => list.showModal(),
      g: () => { afterG = true; },
      j: () => move(1),
      k: () => move(-1),
      n: () => document.getElementById("next")?.click(),
      s: openSaved,
      l: () => document.getElementById("set-limit")?.click(),
      x: () => here?.querySelector(".pick input")?.click(),
    }[event.key];
    if (!done) return;
    event.preventDefault();
    done();
  });
}
