"""What schemathesis is told about this server, for `.ci/fuzz-api`.

A call that is meant to be taken gets what the description cannot make up: ids of jobs in a state that allows the call,
of schedules and of subscriptions; positions that a server has given; and fields that fit each other. One in
`AS_IT_IS` is sent as it was made up.
"""

import contextlib
import itertools
import json
import os
import time
from collections.abc import Mapping

import requests
import schemathesis

SERVER = os.environ["LEASEHOLD_URL"]
# The id in place of which a call gets that of a new job or subscription, and the worker that runs such jobs.
NEW, WORKER = "new", "w"
# Waiting shows nothing: the longest wait in milliseconds, in place of any longer one that is allowed.
WAIT_MS, MAX_WAIT_MS = 10, 60_000
# Ten thousand lines of the same job show no more than these, and each later export would have to read them.
MOST_LINES = 20
# Of so many calls of the last phase that are meant to be taken, one stays as it was made up.
AS_IT_IS = 6
# No receiver is called: this host never exists (RFC 2606).
RECEIVER = "https://receiver.invalid/hook"
LATER = "2090-01-31T08:00:00Z"

numbers, taken = itertools.count(1), itertools.count(1)


@schemathesis.serializer("application/x-ndjson")
def write_lines(_context, value):
    lines = value if isinstance(value, list) else [value]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines[:MOST_LINES])


@schemathesis.deserializer("application/x-ndjson")
def read_lines(_context, response):
    return [json.loads(line) for line in response.content.split(b"\n") if line]


@schemathesis.hook
def before_call(_context, case, _kwargs):
    path = case.operation.path
    below = (make for begin, make in MAKERS_BELOW.items() if path.startswith(begin))
    make = MAKERS.get((case.method, path)) or next(below, running_job)
    case.body = called_nowhere(case.body)
    # A member that does not lead says 503 for as long as the lead goes from one to another.
    is_of_lead = path == "/v1/admin/cluster" and wait_for_leader()
    # Of some calls, the phases before make up only one.
    is_fit = is_of_lead or case.meta.phase.name.value != "fuzzing" or next(taken) % AS_IT_IS
    if case.meta.generation.mode.is_positive and is_fit:
        make_fit(case, make)
    for values in (case.body, case.query):
        wait = str(values.get("wait_ms")) if isinstance(values, Mapping) else ""
        if wait.isdecimal() and WAIT_MS < int(wait) <= MAX_WAIT_MS:
            values["wait_ms"] = WAIT_MS
    items = [item for name in ("leases", "items", "pieces") for item in list_of(case.body, name)]
    with_ids = [values for values in [case.path_parameters, *items] if isinstance(values, Mapping)]
    new = [values for values in with_ids if values.get("id") == NEW]
    # A thousand items about as many jobs show no more than about two.
    ids = [make() for _ in new[:2]]
    for values, made in zip(new, itertools.chain(ids, itertools.repeat(ids[-1] if ids else NEW))):
        values["id"] = made


def list_of(body, name):
    """Returns the list of this name in a body, if there is one."""
    found = body.get(name) if isinstance(body, Mapping) else None
    return found if isinstance(found, list) else []


def called_nowhere(value):
    """Names a host that never exists in place of the examples' one, so that no receiver is called."""
    match value:
        case dict():
            return {name: called_nowhere(inner) for name, inner in value.items()}
        case list():
            return [called_nowhere(inner) for inner in value]
        case str():
            return value.replace("example.org", "receiver.invalid")
        case _:
            return value


def make_fit(case, make):
    """Gives a call what there is, and lets its fields fit each other."""
    _, _, action = case.operation.path.rpartition("/")
    if "id" in case.path_parameters:
        case.path_parameters["id"] = NEW
    if "worker_id" in case.path_parameters:
        case.path_parameters["worker_id"] = WORKER
    if "n" in case.path_parameters:
        case.path_parameters["n"] = 1
    fit_query(case)
    for name in ("Last-Event-ID", "If-Match", "Idempotency-Key"):
        case.headers.pop(name, None)
    if not isinstance(case.body, (dict, list)):
        return
    case.body = fitting(case.body)
    if not isinstance(case.body, dict):
        return
    if case.operation.path.startswith("/v1/admin/jobs/") and "{id}" not in case.operation.path:
        fit_change_of_jobs(case.body, action)
    elif case.operation.path in ("/v1/schedules/pause", "/v1/schedules/resume", "/v1/schedules/remove"):
        case.body["filter"] = fitting_filter(case.body.get("filter"), new_schedule)
        case.body.pop("cursor", None)
        case.body.pop("reason", None) if action != "pause" else case.body.setdefault("reason", "it is wrong")
    elif case.operation.path == "/v1/admin/cluster":
        # What has been done already is no error, and leaves the cluster as it is.
        done = {"add": {"member": 1, "address": SERVER}, "transfer": {"member": wait_for_leader()}}
        case.body |= done.get(case.body.get("action"), {"member": 9})
    elif case.operation.path == "/v1/schedules/{id}":
        case.body.pop("id", None)
    elif case.operation.path == "/v1/limits/{scope}/{name}":
        fit_limit(case.body)
    elif action == "backfill":
        case.body |= {"from": "2026-01-05T00:00:00Z", "to": "2026-01-07T00:00:00Z"}
    elif case.operation.path == "/v1/jobs/{id}" and not case.body.keys() - {"reason"}:
        case.body["priority"] = 3


def fit_query(case):
    """Puts the description's examples, a position of this server, and nothing that does not fit into a query."""
    query = case.query
    for name, example in EXAMPLES.get((case.method, case.operation.path), {}).items():
        if name in query:
            query[name] = example
    for name in ("fence", "last_event_id"):
        query.pop(name, None)
    if case.operation.path == "/v1/jobs/export":
        query.setdefault("queue", "q")
    if query.get("interval") is None:
        query.pop("time", None)
    if query.pop("cursor", None) is not None:
        path = case.operation.path.format(**case.path_parameters)
        page = requests.get(SERVER + path, params={"limit": 1}, timeout=60)
        position = page.json().get("next_cursor") if page.ok else None
        if position is not None:
            query.clear()
            query |= {"limit": 1, "cursor": position}


def fitting(value):
    """Returns a part of a body with fields that fit each other."""
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            # JSON Schema takes 3.0 for a whole number, and the server does not.
            return int(value)
        case list():
            return [fitting(inner) for inner in value]
        case dict():
            fields = {name: fitting(inner) for name, inner in value.items()}
            for name, fit in FITS.items():
                if name in fields:
                    fields[name] = fit(fields[name])
            if {"queue", "kind"} <= fields.keys():
                fit_job(fields)
            if fields.get("start_at"):
                fields.pop("end_at", None)
            if fields.get("queue_order") != "weighted":
                fields.pop("queue_weights", None)
            if isinstance(fields.get("text"), str):
                fields.pop("base64", None)
            return fields
        case _:
            return value


def fit_job(job):
    """Lets the fields of a job that is to be submitted fit each other."""
    if job.get("unique_key") is None:
        job.pop("on_duplicate", None)
    if job.get("on_duplicate") != "replace":
        job.pop("longest_wait_ms", None)
    if job.get("concurrency_key") is None:
        job.pop("max_concurrent", None)
    for name in ("id", "idempotency_key"):
        if job.get(name) is not None:
            job[name] = f"made-up-{next(numbers)}"


def fit_limit(limit):
    """Lets the fields of a limit that is to be set fit each other."""
    if limit.get("urgent"):
        limit["urgent"]["places"] = 1
    if limit.get("urgent") or not any(limit.values()):
        limit["max_concurrent"] = 7
    if limit.get("rate"):
        limit["rate"] = {"count": 3, "per_ms": 1_000}


def fitting_url(url):
    return url if isinstance(url, str) and url.startswith("http") else RECEIVER


def fitting_period(period):
    zone = {"time_zone": "Europe/Berlin"} if period.get("time_zone") else {}
    if period.get("every_ms"):
        return {"every_ms": period["every_ms"]}
    return zone | ({"at": LATER} if period.get("at") else {"cron": "0 3 * * *"})


def fitting_action(action):
    if action.get("type") == "http":
        headers = action.get("headers") or {}
        return {name: inner for name, inner in action.items() if name != "job"} | {
            "url": RECEIVER,
            "headers": {name: text for name, text in headers.items() if name.isascii() and name.isalpha()},
        }
    return {"type": "job", "job": action.get("job") or {"queue": "q", "kind": "k"}}


def fitting_dates(dates):
    some = {"from": "2030-12-24", "to": "2030-12-26"}
    return [{"date": date["date"]} if date.get("date") else some for date in dates]


FITS = {
    "url": fitting_url,
    "period": fitting_period,
    "action": lambda action: fitting_action(action) if isinstance(action, dict) else action,
    "exclude": lambda dates: fitting_dates(dates or []),
    "requires": lambda requires: ["hw = fpga"] if requires else [],
    "retry": lambda retry: {name: inner for name, inner in (retry or {}).items() if name != "base_ms"},
    "worker_id": lambda _: WORKER,
    "fence": lambda _: 1,
    "leases": lambda items: [item | {"id": NEW} for item in items],
    "items": lambda items: [item | {"id": NEW} for item in items],
    "pieces": lambda items: [item | {"id": NEW} for item in items],
    "queues": lambda queues: list(dict.fromkeys(queues)) if isinstance(queues, list) else queues,
}


def fit_change_of_jobs(body, action):
    """Lets the fields of a bulk change fit the change, and its filter find a job that it can be made to."""
    ids = MAKERS.get(("POST", f"/v1/jobs/{{id}}/{action}"), MAKERS.get(("DELETE", "/v1/jobs/{id}"), running_job))
    if action in ("cancel", "edit", "hold", "release"):
        ids = running_job
    body["filter"] = fitting_filter(body.get("filter"), ids)
    key = f"key-{next(numbers)}"
    needed = {"edit": ("edit", {"priority": 3}), "rerun": ("key", key), "release": ("then", "requeue")}
    for name in ("edit", "key", "then"):
        if needed.get(action, ("",))[0] != name:
            body.pop(name, None)
        elif not body.get(name) or not set(body[name]) - {"reason"}:
            body[name] = needed[action][1]
    body.pop("cursor", None)
    if not str(body.get("reason") or "").strip():
        body["reason"] = "it is wrong"


def fitting_filter(filter, make):
    """Returns a filter: for all where it says so, else for what it names, or for something new."""
    filter = filter if isinstance(filter, dict) else {}
    if filter.get("all") is True:
        return {"all": True}
    kept = ("queues", "kinds", "owners", "owner", "orphaned")
    return {name: filter[name] for name in kept if filter.get(name)} or {"ids": [make()]}


def wait_for_leader():
    """Returns the number of the member that leads, once one does and the member that is called knows it."""
    while True:
        leader = requests.get(SERVER + "/v1/cluster", timeout=60).json()["leader"]
        if leader is not None and requests.get(SERVER + "/v1/queues", timeout=60).ok:
            return leader
        time.sleep(0.05)


def new_job(more=None):
    name = f"job-{next(numbers)}"
    post("/v1/jobs", {"id": name, "queue": name, "kind": "k"} | (more or {}))
    return name


def running_job():
    """Makes a job that the worker runs, with the fence 1."""
    name = new_job()
    post("/v1/claims", {"worker_id": WORKER, "queues": [name], "lease_ms": 86_400_000})
    return name


def later_job():
    """Makes a job that waits for its time."""
    return new_job({"run_at": LATER})


def held_job():
    name = new_job()
    post(f"/v1/jobs/{name}/hold", {"reason": "it is wrong"})
    return name


def ended_job():
    """Makes a job that has ended and can be retried."""
    name = new_job()
    post(f"/v1/jobs/{name}/cancel", {})
    return name


def job_with_output():
    name = running_job()
    put = {"worker_id": WORKER, "fence": 1, "stream": "stdout", "offset": 0, "text": "once upon a time"}
    post(f"/v1/jobs/{name}/output", put)
    return name


def new_schedule():
    action = {"type": "job", "job": {"queue": "scheduled", "kind": "k"}}
    schedule = {"id": f"schedule-{next(numbers)}", "period": {"cron": "0 3 * * *"}, "action": action}
    return post("/v1/schedules", schedule)["id"]


def new_subscription():
    return post("/v1/subscriptions", {"url": RECEIVER, "queues": ["nobody"]})["id"]


def post(path, body):
    answer = requests.post(SERVER + path, json=body, timeout=60)
    answer.raise_for_status()
    with contextlib.suppress(ValueError):
        return answer.json()


# What each call gets that is about something; any other one about a job gets one that runs.
MAKERS = {
    ("DELETE", "/v1/jobs/{id}"): ended_job,
    ("POST", "/v1/jobs/{id}/retry"): ended_job,
    ("POST", "/v1/jobs/{id}/rerun"): ended_job,
    ("POST", "/v1/jobs/{id}/run-now"): later_job,
    ("POST", "/v1/jobs/{id}/unhold"): held_job,
    ("PATCH", "/v1/jobs/{id}"): later_job,
    ("GET", "/v1/jobs/{id}/output"): job_with_output,
    ("GET", "/v1/jobs/{id}/attempts/{n}/output"): job_with_output,
}
MAKERS_BELOW = {"/v1/schedules/{id}": new_schedule, "/v1/subscriptions/": new_subscription}

PATHS = requests.get(SERVER + "/openapi.json", timeout=60).json()["paths"]
EXAMPLES = {
    (method.upper(), path): {
        parameter["name"]: parameter["example"]
        for parameter in operation.get("parameters", [])
        if parameter["in"] == "query" and "example" in parameter
    }
    for path, operations in PATHS.items()
    for method, operation in operations.items()
}
