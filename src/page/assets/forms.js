// Forms: the columns of a list, a new schedule with its next times, and a backfill.
import { ofBackfill, ofNewSchedule } from "./acts.js";
import { call, make } from "./api.js";
import { ask, tell } from "./ask.js";
import { elsewhere } from "./elsewhere.js";
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
  const order = () => {
    const { command, ...typed } = Object.fromEntries(new FormData(form));
    return ofNewSchedule(typed, words(command));
  };
  const same = elsewhere("new-schedule");
  place.before(same.place);
  same.show(order());
  let turn = 0;
  form.addEventListener("input", async (event) => {
    same.show(order());
    const { period } = order().body;
    if (!["cron", "time_zone"].includes(event.target.name) || !period.cron) return;
    const mine = ++turn;
    let shown;
    try {
      const { fire_times: times } = await call("POST", "/v1/schedules/preview", { period, n: 10 });
      shown = document.createElement("ol");
      shown.append(...times.map((at) => Object.assign(document.createElement("li"), { textContent: exact(Date.parse(at)) })));
    } catch (error) {
      shown = Object.assign(document.createElement("pre"), { className: "fault", textContent: error.message });
    }
    if (mine === turn) place.replaceChildren(shown);
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await make(order());
      location.assign(`/schedules/${encodeURIComponent(order().body.id)}`);
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
    const order = ofBackfill(form.dataset.backfill, form.dataset.id, span);
    const yes = await ask({
      title: "Run what was missed", verb: "Run them", fields: [], order: () => order,
      explain: (place) => { place.textContent = "What was not performed between the two times is run, one due time after the other."; },
    });
    if (!yes) return;
    try {
      const { backfill_id: id } = await make(order);
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
