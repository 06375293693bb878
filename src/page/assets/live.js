// The page looks again when the server says so, and shows when the server is not there.
const mark = document.getElementById("live");
const LOOKS_AGAIN = ["/", "/jobs", "/workers", "/queues", "/schedules", "/health"];

function say(text, lost) {
  if (!mark) return;
  if (mark.textContent !== text) mark.textContent = text;
  mark.classList.toggle("lost", lost);
}

// What the reader is in the middle of stays as it is.
function isKept(element) {
  return element === document.activeElement && element.matches("input, select, textarea")
    || element.matches("details[open], dialog, .plots, .offers, [data-keep-open]");
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
    callbacks: {
      beforeNodeMorphed(old, next) {
        if (old.nodeType !== Node.ELEMENT_NODE) return true;
        if (old.matches("details[open]") && next.nodeType === Node.ELEMENT_NODE) next.setAttribute("open", "");
        if (old.matches("input[type=checkbox]")) return false;
        return !old.matches(".plots, .offers, pre.output, #next-times");
      },
      beforeNodeRemoved: (old) => !(old.nodeType === Node.ELEMENT_NODE && old.matches(".offers")),
      beforeAttributeUpdated: (name, node) => !(name === "class" && node.matches("tr")),
    },
  });
  done();
}

export function live(done) {
  if (!document.querySelector("main#main")) return;
  const looks = LOOKS_AGAIN.includes(location.pathname) || /^\/(jobs|schedules)\//.test(location.pathname);
  let busy = false;
  const events = new EventSource("/live");
  events.addEventListener("open", () => say("live", false));
  events.addEventListener("error", () => say("connection lost", true));
  events.addEventListener("tick", async () => {
    say("live", false);
    // A page further on in a list stands still, and so does one that nobody sees.
    const further = new URLSearchParams(location.search).has("cursor");
    if (!looks || busy || further || document.hidden || document.querySelector("dialog[open]")) return;
    busy = true;
    try {
      await renew(done);
    } catch {
      say("connection lost", true);
    } finally {
      busy = false;
    }
  });
  addEventListener("pagehide", () => events.close());
  document.addEventListener("leasehold:changed", () => renew(done));
}
