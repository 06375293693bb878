// What can be done with a job, with many jobs, with a queue and with a schedule. Each asks first.
import { call } from "./api.js";
import { ask, tell } from "./ask.js";
import { chosen } from "./selection.js";

const REASON = ["reason", "Reason", "text"];
// Where somebody else's work is changed, the history has to say why.
const DUE_REASON = ["reason", "Reason (needed)", "needed"];
const PRIORITY = ["priority", "Priority, from −100 to 100", "number"];

// How a call about one job is made. `many` is the name of the call about many.
const ACTS = {
  retry: { verb: "Retry" },
  cancel: { verb: "Cancel", danger: true },
  release: { verb: "Release", danger: true, fields: [DUE_REASON] },
  fail: { verb: "Fail", danger: true, fields: [DUE_REASON] },
  hold: { verb: "Hold" },
  unhold: { verb: "Let go" },
  "run-now": { verb: "Run now" },
  rerun: { verb: "Run again" },
  edit: { verb: "Change the priority", fields: [PRIORITY, REASON] },
  delete: { verb: "Delete", danger: true },
};

// Both take the job from its worker, and differ in what becomes of it.
const THEN = { release: "requeue", fail: "fail" };

const changed = () => document.dispatchEvent(new CustomEvent("leasehold:changed"));

function bodyOf(act, typed) {
  const reason = typed.reason ? { reason: typed.reason } : {};
  return act === "edit" ? { priority: Number(typed.priority), ...reason } : reason;
}

async function one(act, { one: path, fence, id }) {
  const { verb, danger, fields = [REASON] } = ACTS[act];
  const typed = await ask({ title: `${verb}: ${id}`, verb, danger, fields });
  if (!typed) return;
  const body = bodyOf(act, typed);
  // A page that was open for long may show another attempt than the one that runs by now.
  const expected = { expected_fence: Number(fence) };
  try {
    if (act === "delete") {
      const reason = typed.reason ? `?reason=${encodeURIComponent(typed.reason)}` : "";
      await call("DELETE", path + reason);
      location.assign("/jobs");
      return;
    }
    if (act in THEN) await call("POST", path.replace("/v1/jobs/", "/v1/admin/jobs/") + "/release", { ...body, ...expected, then: THEN[act] });
    else if (act === "edit") await call("PATCH", path, body);
    else if (act === "rerun") {
      const made = await call("POST", `${path}/rerun`);
      location.assign(`/jobs/${encodeURIComponent(made.id)}`);
      return;
    } else await call("POST", `${path}/${act}`, act === "cancel" ? { ...body, ...expected } : body);
    changed();
  } catch (error) {
    tell(`${verb}: ${id}`, `Nothing was changed: ${error.message}`);
    changed();
  }
}

function filterOf({ kql, state }) {
  const ids = chosen();
  if (ids.length) return { ids };
  const filter = {};
  if (kql) filter.kql = kql;
  if (state) filter.states = [state];
  return kql || state ? filter : { all: true };
}

async function many(act, place) {
  const { verb, danger } = ACTS[act];
  const fields = act === "edit" ? [PRIORITY, DUE_REASON] : [DUE_REASON];
  const path = `/v1/admin/jobs/${act in THEN ? "release" : act}`;
  const filter = filterOf(place);
  // What a change of priority changes is asked for with the reason, so the preview names any.
  const order = act === "edit" ? { filter, edit: { priority: 0 } } : { filter };
  const typed = await ask({
    title: `${verb}: ${filter.ids ? `${filter.ids.length} selected` : "all that are found"}`,
    verb, danger, fields,
    async explain(said, yes) {
      yes.disabled = true;
      said.textContent = "Counting …";
      try {
        const preview = await call("POST", path, { ...order, dry_run: true });
        said.textContent = preview.matched === 1 ? "This is about one job." : `This is about ${preview.matched} jobs.`;
        yes.disabled = preview.matched === 0;
      } catch (error) {
        said.textContent = error.message;
      }
    },
  });
  if (!typed) return;
  const reason = typed.reason ? { reason: typed.reason } : {};
  const full = { filter, ...reason, dry_run: false, ...(act in THEN ? { then: THEN[act] } : {}) };
  if (act === "edit") full.edit = { priority: Number(typed.priority) };
  const said = tell(verb, "Working …");
  const sum = { changed: 0, skipped: 0, failed: 0, failures: [] };
  try {
    for (let cursor = null; ;) {
      const report = await call("POST", path, cursor ? { ...full, cursor } : full);
      sum.changed += report.changed;
      sum.skipped += report.skipped;
      sum.failed += report.failed_total;
      sum.failures.push(...report.failed.map((failure) => `${failure.id}: ${failure.error.message}`));
      said.textContent = `${sum.changed} changed so far …`;
      if (report.done || !report.next_cursor) break;
      cursor = report.next_cursor;
    }
    const left = sum.skipped ? `, ${sum.skipped} left as they were` : "";
    tell(verb, `${sum.changed} changed${left}, ${sum.failed} failed.`, sum.failures.slice(0, 100));
  } catch (error) {
    tell(verb, `${sum.changed} changed, and then: ${error.message}`, sum.failures.slice(0, 100));
  }
  changed();
}

async function thing(act, { base, thing: name }) {
  const verb = { pause: "Pause", resume: "Resume", run: "Run now" }[act];
  const typed = await ask({ title: `${verb}: ${name}`, verb, fields: act === "pause" ? [REASON] : [] });
  if (!typed) return;
  try {
    const body = act === "pause" && typed.reason ? { reason: typed.reason } : undefined;
    const made = await call("POST", `${base}/${act}`, act === "run" ? undefined : body);
    if (act === "run") tell(`${verb}: ${name}`, `Its trigger ${made.trigger_id} is made.`);
    changed();
  } catch (error) {
    tell(`${verb}: ${name}`, `Nothing was changed: ${error.message}`);
  }
}

export function actions() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-act], button[data-do]");
    const place = button?.closest(".acts");
    if (!place) return;
    if (button.dataset.do) thing(button.dataset.do, place.dataset);
    else if ("many" in place.dataset) many(button.dataset.act, place.dataset);
    else one(button.dataset.act, place.dataset);
  });
}
