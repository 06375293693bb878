// What can be done with a job, with many jobs, with a queue, a schedule and a limit. Each asks first.
import { ACTS, THINGS, fieldsOfMany, fieldsOfOne, filterOf, ofMany, ofOne, ofThing } from "./acts.js";
import { call, make } from "./api.js";
import { ask, tell } from "./ask.js";
import { chosen } from "./selection.js";
import { limitAfter, limitFields, limitPath, ofLimit, ofQueue, pauseFields, queueFields, setOf } from "./settings.js";

const changed = () => document.dispatchEvent(new CustomEvent("leasehold:changed"));

async function one(act, place) {
  const { verb, danger } = ACTS[act];
  const title = `${verb}: ${place.id}`;
  const order = (typed) => ofOne(act, place, typed);
  const typed = await ask({ title, verb, danger, fields: fieldsOfOne(act), order });
  if (!typed) return;
  try {
    const made = await make(order(typed));
    if (act === "delete") location.assign("/jobs");
    else if (act === "rerun") location.assign(`/jobs/${encodeURIComponent(made.id)}`);
    else changed();
  } catch (error) {
    tell(title, `Nothing was changed: ${error.message}`);
    changed();
  }
}

async function many(act, place) {
  const { verb, danger } = ACTS[act];
  const filter = filterOf(place, chosen());
  const order = (typed) => ofMany(act, filter, typed);
  const typed = await ask({
    title: `${verb}: ${filter.ids ? `${filter.ids.length} selected` : "all that are found"}`,
    verb, danger, fields: fieldsOfMany(act), order,
    note: "One call changes a part: while “done” of its answer is false, the next one has its “next_cursor” as “cursor”. "
      + "The command goes on by itself.",
    async explain(said, yes) {
      yes.disabled = true;
      said.textContent = "Counting …";
      try {
        const { path, body } = order({});
        const preview = await call("POST", path, { ...body, dry_run: true });
        said.textContent = preview.matched === 1 ? "This is about one job." : `This is about ${preview.matched} jobs.`;
        yes.disabled = preview.matched === 0;
      } catch (error) {
        said.textContent = error.message;
      }
    },
  });
  if (!typed) return;
  const { path, body } = order(typed);
  const said = tell(verb, "Working …");
  const sum = { changed: 0, skipped: 0, failed: 0, failures: [] };
  try {
    for (let cursor = null; ;) {
      const report = await call("POST", path, cursor ? { ...body, cursor } : body);
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

async function thing(act, place) {
  const { verb, fields = [] } = THINGS[act];
  const title = `${verb}: ${place.of} ${place.name}`;
  const order = (typed) => ofThing(act, place, typed);
  const typed = await ask({ title, verb, fields, order });
  if (!typed) return;
  try {
    const made = await make(order(typed));
    if (act === "run") tell(title, `Its trigger ${made.trigger_id} is made.`);
    changed();
  } catch (error) {
    tell(title, `Nothing was changed: ${error.message}`);
  }
}

// Asks with the settings as they are now, and changes them.
async function settings(question, order) {
  if (await ask({ ...question, order, perform: question.perform ?? ((typed) => make(order(typed))) })) changed();
}

async function newLimit() {
  const placeOf = ({ scope, name }) => ({ base: limitPath(scope, name), name: `${scope}:${name}` });
  const order = (typed) => ofLimit(placeOf(typed), limitAfter({}, typed));
  await settings({
    title: "Set a limit", verb: "Set it", fields: limitFields({}, true),
    async perform(typed) {
      const { base, name } = placeOf(typed);
      if ((await call("GET", base)).set_at) throw new Error(`${name} is set already: “change” in its row changes it.`);
      // Nothing that is set is no limit, which the server says.
      await make({ ...order(typed), method: "PUT", body: limitAfter({}, typed) });
    },
  }, order);
}

async function limit(act, place) {
  const set = setOf(await call("GET", place.base));
  const fields = {
    change: () => limitFields(set, false), pause: () => pauseFields(set, true), resume: () => [], remove: () => [],
  }[act]();
  const verb = { change: "Change it", pause: "Pause", resume: "Resume", remove: "Remove" }[act];
  const { paused_until: _, ...rest } = set;
  const after = {
    change: (typed) => limitAfter(set, typed), pause: (typed) => limitAfter(set, typed), resume: () => rest, remove: () => ({}),
  }[act];
  const title = `${verb}: limit ${place.name}`;
  await settings({ title, verb, danger: act === "remove", fields }, (typed) => ofLimit(place, after(typed)));
}

async function queueOrder(place) {
  const queue = await call("GET", place.base);
  const title = `Order of the queue ${place.name}`;
  await settings({ title, verb: "Set it", fields: queueFields(queue) }, (typed) => ofQueue(place, queue, typed));
}

export function actions() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-act], button[data-do]");
    const place = button?.closest(".acts");
    if (!place) return;
    const act = button.dataset.do;
    try {
      if (button.dataset.act) await ("many" in place.dataset ? many : one)(button.dataset.act, place.dataset);
      else if (act === "set") await newLimit();
      else if (act === "order") await queueOrder(place.dataset);
      else if (place.dataset.of === "limit") await limit(act, place.dataset);
      else await thing(act, place.dataset);
    } catch (error) {
      tell(button.textContent, `Nothing was changed: ${error.message}`);
    }
  });
}
