// What the pages do beside showing: everything here is an addition, and each page can be read without it.
import { actions } from "./actions.js";
import { charts } from "./charts.js";
import { completion } from "./completion.js";
import { forms } from "./forms.js";
import { keys } from "./keys.js";
import { live } from "./live.js";
import { output } from "./output.js";
import { saved } from "./saved.js";
import { isDark } from "./scheme.js";
import { selection } from "./selection.js";
import { times } from "./times.js";

function copying() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const place = document.getElementById(button.dataset.copy);
    // A page that came without TLS from another machine may not write to the clipboard.
    if (!navigator.clipboard) return getSelection().selectAllChildren(place);
    await navigator.clipboard.writeText(place.textContent);
    button.textContent = "copied";
  });
}

function theme() {
  const root = document.documentElement;
  document.getElementById("theme")?.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
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
saved();
output();
live(renewed);
renewed();
