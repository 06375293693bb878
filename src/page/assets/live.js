// The page looks again when the server says so, and shows when the server is not there.
const mark = document.getElementById("live");
const LOOKS_AGAIN = ["/", "/jobs", "/workers", "/queues", "/schedules", "/events", "/health"];

function say(text, lost) {
  if (!mark) return;
  if (mark.textContent !== text) mark.textContent = text;
  mark.classList.toggle("lost", lost);
}

async function renew(done) {
  const answer = await fetch(location.href, { headers: { accept: "text/html" }, cache: "no-store" });
  if (answer.redirected) return location.reload();
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
  if (!fresh) return;
  Idiomorph.morph(document.querySelector("main"), fresh.innerHTML, {
    morphStyle: "innerHTML",
    ignoreActiveValue: true,
    // What the reader is in the middle of stays as it is, and so does what the script has written.
    callbacks: {
      beforeNodeMorphed(old, next) {
        if (old.nodeType !== Node.ELEMENT_NODE) return true;
        if (old.matches("details[open]") && next.nodeType === Node.ELEMENT_NODE) next.setAttribute("open", "");
        if (old.matches("input[type=checkbox]")) return false;
        return !old.matches(".plots, .offers, pre.output, #next-times, #saved");
      },
      beforeNodeRemoved: (old) => !(old.nodeType === Node.ELEMENT_NODE && old.matches(".offers, .elsewhere")),
      // Also what was typed into a field that has lost the focus since.
      beforeAttributeUpdated: (name, node) =>
        !(name === "class" && node.matches("tr")) &&
        !(name === "value" && node.matches("input") && node.value !== node.defaultValue),
    },
  });
  done();
}

export function live(done) {
  if (!document.querySelector("main#main")) return;
  const looks = LOOKS_AGAIN.includes(location.pathname) || /^\/(jobs|schedules)\//.test(location.pathname);
  // A page further on in a list stands still.
  const further = new URLSearchParams(location.search).has("cursor");
  let busy = false, events = null;
  async function tick() {
    say("live", false);
    if (!looks || busy || further || document.querySelector("dialog[open]")) return;
    busy = true;
    try {
      await renew(done);
    } catch {
      say("connection lost", true);
    } finally {
      busy = false;
    }
  }
  // A browser opens few connections to one server, for all its tabs together: a page that nobody sees has none.
  function follow() {
    events?.close();
    events = null;
    if (document.hidden) return;
    events = new EventSource("/live");
    events.addEventListener("open", () => say("live", false));
    events.addEventListener("error", () => {
      say("connection lost", true);
      // The server refuses, as it does those who are signed in no longer: the page then leads to where one signs in.
      if (events?.readyState === EventSource.CLOSED) renew(done).catch(() => {});
    });
    events.addEventListener("tick", tick);
  }
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", () => events?.close());
  follow();
  document.addEventListener("leasehold:changed", () => renew(done));
}
