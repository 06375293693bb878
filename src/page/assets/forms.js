// Forms: the columns of a list, a new schedule with its next times, and a backfill.
import { call } from "./api.js";
import { ask, tell } from "./ask.js";
import { exact } from "./times.js";

function columns() {
  document.querySelector("[data-columns]")?.addEventListener("submit", (event) => {
    event.preventDefault();
    const typed = new FormData(event.target);
    const query = new URLSearchParams();
    for (const name of ["kql", "state", "sort"]) if (typed.get(name)) query.set(name, typed.get(name));
    query.set("columns", typed.getAll("columns").join(","));
    location.assign(`/jobs?${query}`);
  });
}

// A command line as the words that it stands for. Quotes keep blanks together; nothing else is special.
export function words(text) {
  return [...text.matchAll(/"([^"]*)"|'([^']*)'|(\S+)/g)].map(([, double, single, plain]) => double ?? single ?? plain);
}

function newSchedule() {
  const form = document.getElementById("new-schedule");
  const place = document.getElementById("next-times");
  if (!form) return;
  const period = () => {
    const { cron, time_zone: zone } = Object.fromEntries(new FormData(form));
    return { cron, ...(zone ? { time_zone: zone } : {}) };
  };
  let turn = 0;
  form.addEventListener("input", async (event) => {
    if (!["cron", "time_zone"].includes(event.target.name) || !period().cron) return;
    const mine = ++turn;
    let shown;
    try {
      const { fire_times: times } = await call("POST", "/v1/schedules/preview", { period: period(), n: 10 });
      shown = document.createElement("ol");
      shown.append(...times.map((at) => Object.assign(document.createElement("li"), { textContent: exact(Date.parse(at)) })));
    } catch (error) {
      shown = Object.assign(document.createElement("pre"), { className: "fault", textContent: error.message });
    }
    if (mine === turn) place.replaceChildren(shown);
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { id, queue, command } = Object.fromEntries(new FormData(form));
    const job = { queue, kind: "shell", payload: { command: words(command) } };
    try {
      await call("POST", "/v1/schedules", { id, period: period(), action: { type: "job", job } });
      location.assign(`/schedules/${encodeURIComponent(id)}`);
    } catch (error) {
      tell("Add a schedule", `It was not added: ${error.message}`);
    }
  });
}

function backfill() {
  const form = document.querySelector("[data-backfill]");
  form?.addEventListener("submit", async (event) => {
    event.preventDefault();
    const typed = new FormData(form);
    const span = Object.fromEntries(["from", "to"].map((name) => [name, new Date(typed.get(name)).toISOString()]));
    const yes = await ask({
      title: "Run what was missed", verb: "Run them", fields: [],
      explain: (place) => { place.textContent = "What was not performed between the two times is run, one due time after the other."; },
    });
    if (!yes) return;
    try {
      const { backfill_id: id } = await call("POST", form.dataset.backfill, span);
      location.assign(`/jobs/${encodeURIComponent(id)}`);
    } catch (error) {
      tell("Run what was missed", `Nothing was begun: ${error.message}`);
    }
  });
}

export function forms() {
  columns();
  newSchedule();
  backfill();
}
