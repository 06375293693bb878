// The dialog that asks before something is changed, and says what came of it.
const dialog = document.getElementById("ask");

function element(name, text, properties = {}) {
  return Object.assign(document.createElement(name), { textContent: text ?? "" }, properties);
}

function field(name, label, kind) {
  const line = element("label", label);
  const input = element("input", "", kind === "number"
    ? { type: "number", min: -100, max: 100, step: 1, required: true, name, value: 0 }
    : { name, maxLength: 4096, autocomplete: "off", required: kind === "needed" });
  line.append(input);
  return line;
}

// Asks, with these fields, and returns what was typed; null when it was called off. `explain` fills a place with what
// is about to happen.
export function ask({ title, verb, danger, fields, explain }) {
  const form = element("form", "", { method: "dialog", className: "form" });
  const place = element("div", "", { role: "status" });
  place.setAttribute("role", "status");
  const row = element("div", "", { className: "row" });
  const yes = element("button", verb, { className: danger ? "danger" : "main", value: "yes", type: "submit" });
  const no = element("button", "Leave it", { type: "button" });
  no.addEventListener("click", () => dialog.close(""));
  row.append(no, yes);
  form.append(place, ...fields.map(([name, label, kind]) => field(name, label, kind)), row);
  dialog.replaceChildren(element("h2", title, { id: "ask-title" }), form);
  dialog.returnValue = "";
  dialog.showModal();
  explain?.(place, yes);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes" ? Object.fromEntries(new FormData(form)) : null);
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
