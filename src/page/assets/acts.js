// Which call each act makes, as an order: its method, its path, its body, and the same on the command line. An act is
// made by its order and shown by it, so that what is shown is what is done.
import { option } from "./elsewhere.js";

const REASON = { name: "reason", label: "Reason", maxLength: 4096 };
// Where somebody else's work is changed, the history has to say why.
const DUE_REASON = { ...REASON, label: "Reason (needed)", required: true };
const PRIORITY = {
  name: "priority", label: "Priority, from −100 to 100", type: "number", min: -100, max: 100, step: 1, required: true, value: 0,
};

// What can be done with jobs.
export const ACTS = {
  retry: { verb: "Retry" },
  cancel: { verb: "Cancel", danger: true },
  release: { verb: "Release", danger: true, fields: [DUE_REASON] },
  fail: { verb: "Fail", danger: true, fields: [DUE_REASON] },
  hold: { verb: "Hold" },
  unhold: { verb: "Let go" },
  "run-now": { verb: "Run now" },
  rerun: { verb: "Run again", fields: [] },
  edit: { verb: "Change the priority", fields: [PRIORITY, REASON] },
  delete: { verb: "Delete", danger: true },
};

export const fieldsOfOne = (act) => ACTS[act].fields ?? [REASON];
export const fieldsOfMany = (act) => act === "edit" ? [PRIORITY, DUE_REASON] : [DUE_REASON];

// Both take the job from its worker, and differ in what becomes of it.
const THEN = { release: "requeue", fail: "fail" };

const because = ({ reason }) => reason ? { reason } : {};

// The order about one job. A page that was open for long may show another attempt than the one that runs by now, and
// so names the fence that it has shown.
export function ofOne(act, { one: path, fence, id }, typed) {
  const order = (method, at, body, flags = [], verb = act) =>
    ({ method, path: at, body, cli: { verbs: [verb], on: [id], options: [...flags, ...option("reason", typed.reason)] } });
  const expected = { expected_fence: Number(fence) };
  if (act in THEN) {
    const body = { ...because(typed), ...expected, then: THEN[act] };
    const flags = [...option("then", THEN[act]), ...option("expected-fence", fence)];
    return order("POST", `${path.replace("/v1/jobs/", "/v1/admin/jobs/")}/release`, body, flags, "release");
  }
  switch (act) {
    // A job that runs again is a new one, whose history has no reason yet.
    case "rerun": return { method: "POST", path: `${path}/rerun`, cli: { verbs: [act], on: [id] } };
    case "delete": return order("DELETE", path + (typed.reason ? `?reason=${encodeURIComponent(typed.reason)}` : ""));
    case "edit": return order("PATCH", path, { priority: Number(typed.priority), ...because(typed) }, option("priority", typed.priority));
    case "cancel": return order("POST", `${path}/cancel`, { ...because(typed), ...expected });
    default: return order("POST", `${path}/${act}`, because(typed));
  }
}

// The filter of what is selected, or of all that are found.
export function filterOf({ kql, state, zone }, ids) {
  if (ids.length) return { ids };
  if (!kql && !state) return { all: true };
  return { ...(kql ? { kql } : {}), ...(kql && zone ? { time_zone: zone } : {}), ...(state ? { states: [state] } : {}) };
}

const flagsOf = ({ kql, time_zone: zone, states, all }) =>
  [...option("query", kql), ...option("time-zone", zone), ...option("state", states?.[0]), ...(all ? ["--all"] : [])];

// The order about many jobs.
export function ofMany(act, filter, typed) {
  const body = { filter, ...because(typed), dry_run: false };
  if (act in THEN) body.then = THEN[act];
  // What a change of priority changes is asked for with the reason, so a preview names any.
  if (act === "edit") body.edit = { priority: Number(typed.priority ?? 0) };
  const verb = act in THEN ? "release" : act;
  const flags = [
    ...(act in THEN ? option("then", THEN[act]) : []), ...(act === "edit" ? option("priority", typed.priority) : []),
    ...flagsOf(filter), ...option("reason", typed.reason),
  ];
  return { method: "POST", path: `/v1/admin/jobs/${verb}`, body, cli: { verbs: [verb], on: filter.ids ?? [], options: flags } };
}

// What can be done with a queue and with a schedule.
export const THINGS = { pause: { verb: "Pause", fields: [REASON] }, resume: { verb: "Resume" }, run: { verb: "Run now" } };

export function ofThing(act, { base, of, name }, typed) {
  const body = act === "pause" && typed.reason ? because(typed) : undefined;
  return { method: "POST", path: `${base}/${act}`, body, cli: { verbs: [of, act], on: [name], options: option("reason", typed.reason) } };
}

// The order that adds a schedule of a command, given as its words.
export function ofNewSchedule({ id, cron, time_zone: zone, queue }, command) {
  const job = { queue, kind: "shell", payload: { command } };
  const period = { cron, ...(zone ? { time_zone: zone } : {}) };
  const options = [...option("time-zone", zone), ...option("queue", queue)];
  const cli = { verbs: ["schedule", "add"], on: [id, cron], options, last: command };
  return { method: "POST", path: "/v1/schedules", body: { id, period, action: { type: "job", job } }, cli };
}

export function ofBackfill(path, id, { from, to }) {
  const cli = { verbs: ["schedule", "backfill"], on: [id], options: [...option("from", from), ...option("to", to)] };
  return { method: "POST", path, body: { from, to }, cli };
}
