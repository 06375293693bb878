// Searches that this browser keeps under a name. The address stays the state: a saved one is a link to it.
const KEY = "searches";
const MOST = 100;
const element = (name, properties = {}) => Object.assign(document.createElement(name), properties);

// Returns the searches, each its name and its query; none where there are none, or something else was written there.
function read() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return kept.filter((one) => typeof one?.name === "string" && typeof one?.query === "string").slice(0, MOST);
  } catch {
    return [];
  }
}

const write = (searches) => localStorage.setItem(KEY, JSON.stringify(searches));

// The query of the address, from the first page on.
function here() {
  const query = new URLSearchParams(location.search);
  query.delete("cursor");
  return query.toString();
}

export function saved() {
  const menu = document.getElementById("saved");
  const list = menu?.querySelector("ul");
  if (!menu) return;
  const form = menu.querySelector("form");

  function show() {
    const searches = read();
    list.replaceChildren(...searches.map(({ name, query }) => {
      const item = element("li");
      const link = element("a", { href: `/jobs?${new URLSearchParams(query)}`, textContent: name });
      link.setAttribute("dir", "auto");
      if (query === here()) link.setAttribute("aria-current", "true");
      const button = element("button", { type: "button", className: "quiet", textContent: "remove" });
      button.setAttribute("aria-label", `Remove ${name}`);
      button.addEventListener("click", () => {
        write(read().filter((one) => one.name !== name));
        show();
        (list.querySelector("a") ?? form.querySelector("input")).focus();
      });
      item.append(link, button);
      return item;
    }));
    menu.querySelector(".empty").hidden = searches.length > 0;
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const said = menu.querySelector("[role=status]");
    const name = form.elements.name.value.trim();
    const others = read().filter((one) => one.name !== name);
    if (!name) return;
    if (others.length >= MOST) {
      said.textContent = `There are ${MOST} already: remove one.`;
      return;
    }
    write([...others, { name, query: here() }].sort((one, other) => one.name.localeCompare(other.name)));
    form.reset();
    said.textContent = `Saved: ${name}`;
    show();
  });
  // What another tab has saved or removed.
  addEventListener("storage", show);
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
  show();
}
