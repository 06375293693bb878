// The query bar offers fields, and the values of those that have few.
import { call } from "./api.js";

const WORDS = ["and", "or", "not"];

function offersFor(text, fields) {
  const typed = text.match(/[\w.@-]*$/)[0];
  const before = text.slice(0, text.length - typed.length);
  const named = before.match(/([\w.@]+)\s*:\s*\(?[^()]*$/);
  const field = named && fields.find((known) => known.name === named[1]);
  const starts = (word) => word.toLowerCase().startsWith(typed.toLowerCase()) && word !== typed;
  if (field?.values.length && !/\s(and|or)\s+$/i.test(before)) {
    return field.values.filter(starts).map((value) => ({ text: value, about: "" }));
  }
  if (!typed) return [];
  const searchable = fields.filter((known) => known.type !== "kept" && starts(known.name));
  return [
    ...searchable.map((known) => ({ text: `${known.name}: `, about: known.meaning })),
    ...WORDS.filter(starts).map((word) => ({ text: `${word} `, about: "" })),
  ];
}

export function completion() {
  const form = document.querySelector("[data-kql]:is(form)");
  const input = document.getElementById("kql");
  if (!form || !input) return;
  let fields = null, offers = [], at = -1;
  const list = Object.assign(document.createElement("ul"), { className: "offers", id: "offers", hidden: true });
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Fields and values");
  form.append(list);
  input.setAttribute("role", "combobox");
  input.setAttribute("aria-autocomplete", "list");
  input.setAttribute("aria-controls", "offers");
  input.setAttribute("aria-expanded", "false");

  function close() {
    list.hidden = true;
    at = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }
  function take(offer) {
    const caret = input.selectionStart;
    const before = input.value.slice(0, caret).replace(/[\w.@-]*$/, "") + offer.text;
    input.value = before + input.value.slice(caret);
    input.setSelectionRange(before.length, before.length);
    close();
    input.focus();
  }
  function show() {
    list.replaceChildren(...offers.map((offer, index) => {
      const item = Object.assign(document.createElement("li"), { id: `offer-${index}`, textContent: offer.text.trim() });
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", String(index === at));
      if (offer.about) item.append(" ", Object.assign(document.createElement("small"), { textContent: offer.about }));
      item.addEventListener("mousedown", (event) => { event.preventDefault(); take(offer); });
      return item;
    }));
    list.hidden = !offers.length;
    input.setAttribute("aria-expanded", String(!list.hidden));
    if (at >= 0) {
      input.setAttribute("aria-activedescendant", `offer-${at}`);
      list.children[at].scrollIntoView({ block: "nearest" });
    }
  }
  input.addEventListener("input", async () => {
    fields ??= (await call("GET", form.dataset.kql)).items;
    offers = offersFor(input.value.slice(0, input.selectionStart), fields).slice(0, 12);
    at = -1;
    show();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    if (list.hidden) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      at = (at + (event.key === "ArrowDown" ? 1 : offers.length)) % offers.length;
      if (event.key === "ArrowUp" && at === -1) at = offers.length - 1;
      show();
    } else if ((event.key === "Enter" && at >= 0) || (event.key === "Tab" && offers.length)) {
      event.preventDefault();
      take(offers[Math.max(at, 0)]);
    }
  });
  input.addEventListener("blur", close);
}
