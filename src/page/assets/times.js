// Times: by their distance from now, exact where the pointer rests, in the zone that the reader chose.
const zones = ["UTC", Intl.DateTimeFormat().resolvedOptions().timeZone].filter((zone, at, all) => all.indexOf(zone) === at);
let zone = zones.includes(localStorage.getItem("zone")) ? localStorage.getItem("zone") : zones[0];
// The server's clock is the one that counts.
let ahead = 0;

function distance(milliseconds) {
  const seconds = Math.round(milliseconds / 1000);
  if (seconds < 120) return `${seconds}s`;
  if (Math.round(seconds / 60) < 120) return `${Math.round(seconds / 60)}m`;
  if (Math.round(seconds / 3600) < 48) return `${Math.round(seconds / 3600)}h`;
  const days = Math.round(seconds / 86400);
  return days < 730 ? `${days}d` : `${Math.floor(days / 365)}y`;
}

export function relative(at, now) {
  return at > now ? `in ${distance(at - now)}` : `${distance(now - at)} ago`;
}

export function exact(at) {
  const shown = new Intl.DateTimeFormat("sv-SE", {
    timeZone: zone, dateStyle: "short", timeStyle: "medium",
  }).format(at);
  return `${shown} ${zone}`;
}

export const serverNow = () => Date.now() + ahead;

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const times = {
  start() {
    const written = document.querySelector("footer time");
    if (written) ahead = Date.parse(written.dateTime) - Date.now();
    const button = document.getElementById("zone");
    if (button) {
      button.textContent = zone;
      button.addEventListener("click", () => {
        zone = zones[(zones.indexOf(zone) + 1) % zones.length];
        localStorage.setItem("zone", zone);
        button.textContent = zone;
        this.show();
      });
    }
    setInterval(() => this.show(), 1000);
  },
  show() {
    const now = serverNow();
    const button = document.getElementById("zone");
    if (button) set(button, zone);
    for (const time of document.querySelectorAll("time[datetime]")) {
      const at = Date.parse(time.dateTime);
      set(time, relative(at, now));
      const title = exact(at);
      if (time.title !== title) time.title = title;
    }
    for (const clock of document.querySelectorAll("[data-until]")) {
      const left = Math.round((Date.parse(clock.dataset.until) - now) / 1000);
      set(clock, left >= 0 ? `in ${left} s` : `${-left} s ago`);
      clock.classList.toggle("over", left < 0);
    }
  },
};
