// The dialog that asks before something is changed, and says what came of it.
import { elsewhere } from "./elsewhere.js";

const dialog = document.getElementById("ask");

function element(name, text, properties = {}) {
  return Object.assign(document.createElement(name), { textContent: text ?? "" }, properties);
}

// A field: a choice where it has options, several lines where it has rows, else one line.
function field({ label, options, ...rest }) {
  const line = element("label", label);
  const input = element(options ? "select" : "rows" in rest ? "textarea" : "input");
  input.append(...(options ?? []).map(([value, text]) => element("option", text, { value })));
  line.append(Object.assign(input, options ? {} : { autocomplete: "off" }, rest));
  return line;
}

const typedIn = (form) => Object.fromEntries(new FormData(form));

// Asks, with these fields, and returns what was typed; null when it was called off. `explain` fills a place with what
// is about to happen, and `order` says which call what is typed makes. With `perform` the dialog stays as it is until
// that has succeeded, and says why it has not.
export function ask({ title, verb, danger, fields, explain, order, note, perform }) {
  const form = element("form", "", { method: "dialog", className: "form" });
  const place = element("div");
  place.setAttribute("role", "status");
  const row = element("div", "", { className: "row" });
  const yes = element("button", verb, { className: danger ? "danger" : "main", value: "yes", type: "submit" });
  const no = element("button", "Leave it", { type: "button" });
  no.addEventListener("click", () => dialog.close(""));
  row.append(no, yes);
  const same = elsewhere("ask", note);
  form.append(place, ...fields.map(field), row, same.place);
  const show = () => same.show(order(typedIn(form)));
  form.addEventListener("input", show);
  if (perform) {
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      yes.disabled = true;
      try {
        await perform(typedIn(form));
        dialog.close("yes");
      } catch (error) {
        place.textContent = error.message;
        place.className = "fault";
        yes.disabled = false;
      }
    });
  }
  dialog.replaceChildren(element("h2", title, { id: "ask-title" }), form);
  show();
  dialog.returnValue = "";
  dialog.showModal();
  explain?.(place, yes);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes" ? typedIn(form) : null);
    }, { once: true });
  });
}

// Shows what came of it, until the reader closes it.
export function tell(title, text, failures = []) {
  const form = element("form", "", { method: "dialog" });
  const row = element("div", "", { className: "row" });
  row.append(element("button", "Close", { className: "main" }));
  form.append(row);
  const list = element("ul");
  list.append(...failures.map((failure) => element("li", failure)));
  const said = element("p", text);
  said.setAttribute("role", "status");
  dialog.replaceChildren(element("h2", title, { id: "ask-title" }), said, ...(failures.length ? [list] : []), form);
  if (!dialog.open) dialog.showModal();
  return said;
}
