// What the pages do beside showing: everything here is an addition, and each page can be read without it.
import { actions } from "./actions.js";
import { charts } from "./charts.js";
import { completion } from "./completion.js";
import { forms } from "./forms.js";
import { keys } from "./keys.js";
import { live } from "./live.js";
import { output } from "./output.js";
import { selection } from "./selection.js";
import { times } from "./times.js";

function copying() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "copied";
  });
}

function theme() {
  const root = document.documentElement;
  document.getElementById("theme")?.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
  });
}

// What has to be done again whenever the page is renewed.
function renewed() {
  times.show();
  charts();
  selection.show();
  for (const place of document.querySelectorAll("[data-origin]")) place.textContent = location.origin;
}

theme();
copying();
times.start();
keys();
completion();
actions();
selection.start();
forms();
output();
live(renewed);
renewed();
