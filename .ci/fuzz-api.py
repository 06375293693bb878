"""What schemathesis is told about this server, for `.ci/fuzz-api`."""

import itertools
import json
import os
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

numbers = itertools.count(1)


@schemathesis.serializer("application/x-ndjson")
def write_lines(_context, value):
    lines = value if isinstance(value, list) else [value]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines[:MOST_LINES])


@schemathesis.deserializer("application/x-ndjson")
def read_lines(_context, response):
    return [json.loads(line) for line in response.content.split(b"\n") if line]


@schemathesis.hook
def before_call(_context, case, _kwargs):
    case.body = called_nowhere(case.body)
    for values in (case.body, case.query):
        wait = str(values.get("wait_ms")) if isinstance(values, Mapping) else ""
        if wait.isdecimal() and WAIT_MS < int(wait) <= MAX_WAIT_MS:
            values["wait_ms"] = WAIT_MS

    make = new_subscription if case.operation.path.startswith("/v1/subscriptions/") else new_job
    items = [item for name in ("leases", "items") for item in list_of(case.body, name)]
    for values in [case.path_parameters, *items]:
        if isinstance(values, Mapping) and values.get("id") == NEW:
            values["id"] = make()


def list_of(body, name):
    """Returns the list of this name in a body, if there is one."""
    found = body.get(name) if isinstance(body, Mapping) else None
    return found if isinstance(found, list) else []


def called_nowhere(value):
    """Names a host that never exists (RFC 2606) in place of the examples' one, so that no receiver is called."""
    match value:
        case dict():
            return {name: called_nowhere(inner) for name, inner in value.items()}
        case list():
            return [called_nowhere(inner) for inner in value]
        case str():
            return value.replace("example.org", "receiver.invalid")
        case _:
            return value


def new_job():
    """Makes a job that the worker runs, with the fence 1."""
    name = f"job-{next(numbers)}"
    post("/v1/jobs", {"id": name, "queue": name, "kind": "k"})
    post("/v1/claims", {"worker_id": WORKER, "queues": [name], "lease_ms": 86_400_000})
    return name


def new_subscription():
    return post("/v1/subscriptions", {"url": "https://receiver.invalid/hook", "queues": ["nobody"]})["id"]


def post(path, body):
    answer = requests.post(SERVER + path, json=body, timeout=60)
    answer.raise_for_status()
    return answer.json()
