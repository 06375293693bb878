// The settings of limits and of queues: what is set, and the orders that change it.
import { option } from "./elsewhere.js";

const SCOPES = ["queue", "kind", "owner", "key"].map((scope) => [scope, scope]);
const READ_ONLY = ["limit", "set_at", "by", "running"];
const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1_000], ["ms", 1]];
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

// A form that is being filled in may lack it yet.
function duration(ms) {
  if (!ms) return "";
  const [unit, length] = UNITS.find(([, length]) => ms % length === 0);
  return `${ms / length}${unit}`;
}

// A time as a field for times takes it, on the clock of this browser.
function local(at) {
  if (!at) return "";
  const time = new Date(at);
  return new Date(time - time.getTimezoneOffset() * 60_000).toISOString().slice(0, -1);
}

const UNTIL = { name: "paused_until", type: "datetime-local", step: "any" };
const LIMIT_NAME = [
  { name: "scope", label: "The jobs of one", options: SCOPES },
  { name: "name", label: "Its name", required: true, maxLength: 256 },
];

// The fields of a limit, filled with what is set.
export function limitFields(set, isNew) {
  const number = (name, label, value, min, max, step = 1) => ({ name, label, type: "number", min, max, step, value: value ?? "" });
  return [
    ...(isNew ? LIMIT_NAME : []),
    number("max_concurrent", "At most so many run at once", set.max_concurrent, 1, 1000),
    number("places", "So many of these places are kept for urgent jobs", set.urgent?.places, 1, 999),
    number("min_priority", "Urgent is a priority from", set.urgent?.min_priority, -99, 100),
    number("count", "At most so many begin", set.rate?.count, 1, 1_000_000),
    number("per", "in so many seconds", set.rate && set.rate.per_ms / 1000, 1, 86_400, 0.001),
    number("burst", "So many begin at once after a lull (as many as begin, unless given)", set.rate?.burst, 1, 1_000_000),
    ...pauseFields(set, false),
  ];
}

export const pauseFields = (set, required) =>
  [{ ...UNTIL, label: `None begins before (${zone})`, value: local(set.paused_until), required }];

// What is set of a limit. A PUT replaces all of it, so what a form does not show has to be sent again.
export const setOf = (state) =>
  Object.fromEntries(Object.entries(state).filter(([name, value]) => value !== null && !READ_ONLY.includes(name)));

// What is to be set after this was typed. A field that the form has not is as it was, and an empty one is not set.
export function limitAfter(set, typed) {
  const after = { ...set };
  const put = (field, name, value) => {
    if (!(field in typed)) return;
    delete after[name];
    if (value !== undefined) after[name] = value;
  };
  const number = (text) => text ? Number(text) : undefined;
  put("max_concurrent", "max_concurrent", number(typed.max_concurrent));
  const urgent = { ...set.urgent, places: number(typed.places), min_priority: number(typed.min_priority) };
  put("places", "urgent", typed.places || typed.min_priority ? urgent : undefined);
  const per = typed.per ? Math.round(typed.per * 1000) : undefined;
  const rate = { ...set.rate, count: number(typed.count), per_ms: per, burst: number(typed.burst) };
  put("count", "rate", typed.count || typed.per || typed.burst ? rate : undefined);
  // A time that nobody has touched stays exactly as it is, on whatever clock it was meant.
  const isSame = set.paused_until && Date.parse(typed.paused_until) === Date.parse(local(set.paused_until));
  put("paused_until", "paused_until", isSame ? set.paused_until : time(typed.paused_until));
  return after;
}

function time(text) {
  const at = text ? Date.parse(text) : NaN;
  return Number.isNaN(at) ? undefined : new Date(at).toISOString();
}

export const limitPath = (scope, name) => `/v1/limits/${scope}/${encodeURIComponent(name)}`;

// The order that sets a limit, or takes it away where nothing is set of it.
export function ofLimit({ base, name }, set) {
  if (!Object.keys(set).length) return { method: "DELETE", path: base, cli: { verbs: ["limit", "remove"], on: [name] } };
  const { max_concurrent: most, urgent, rate, paused_until: until } = set;
  const options = [
    ...option("urgent-places", urgent?.places), ...option("urgent-priority", urgent?.min_priority),
    ...option("rate", rate && `${rate.count ?? ""}/${duration(rate.per_ms)}`), ...option("burst", rate?.burst), ...option("paused-until", until),
  ];
  return { method: "PUT", path: base, body: set, cli: { verbs: ["limit", "set"], on: [name, ...(most ? [String(most)] : [])], options } };
}

const ORDERS = [["dispatch", "the one that has been due longest"], ["shortest", "the one that is expected to run shortest"]];
const FAIRNESS = [
  ["none", "nobody’s: the job’s own time counts"], ["owner", "each owner’s in turn"],
  ["owner_runtime", "each owner’s in turn, by expected runtimes"],
];
const POLICIES = [
  ["default", "as the monitor is set up"], ["requeue", "it waits for its next attempt"], ["fail", "it fails"],
  ["flag", "it is flagged, and a person decides"],
];
const weightsOf = (weights) => Object.entries(weights ?? {}).map(([owner, weight]) => `${owner}=${weight}`).join("\n");

// The fields of a queue's settings, filled with what is set.
export function queueFields(queue) {
  return [
    { name: "order", label: "Which of the due jobs of one priority is next", options: ORDERS, value: queue.order },
    { name: "fairness", label: "Whose turn it is among them", options: FAIRNESS, value: queue.fairness },
    { name: "weights", label: "Weights, one OWNER=NUMBER a line", rows: 3, value: weightsOf(queue.weights) },
    { name: "orphan_policy", label: "What becomes of a job whose lease expires", options: POLICIES, value: queue.orphan_policy ?? "default" },
  ];
}

// The order that changes a queue's settings: its order and its fairness, and the others where they were changed.
export function ofQueue({ base, name }, queue, { order, fairness, weights, orphan_policy: policy }) {
  const body = { order, fairness };
  const options = [...option("order", order), ...option("fairness", fairness)];
  const lines = weights.split("\n").map((line) => line.trim()).filter(Boolean);
  if (lines.join("\n") !== weightsOf(queue.weights)) {
    const pairs = lines.map((line) => line.match(/^(.*?)(?:=([^=]*))?$/s).slice(1));
    body.weights = Object.fromEntries(pairs.map(([owner, weight]) => [owner, Number(weight)]));
    options.push(...(lines.length ? lines.flatMap((line) => option("weight", line)) : ["--no-weights"]));
  }
  if (policy !== (queue.orphan_policy ?? "default")) {
    body.orphan_policy = policy === "default" ? null : policy;
    options.push(...option("orphan-policy", policy));
  }
  return { method: "PATCH", path: base, body, cli: { verbs: ["queue", "set"], on: [name], options } };
}
