import json

import pytest

from comm_plan.report.perfetto import to_trace
from comm_plan.report.timeline import ROWS


def events(timelines, phase):
    trace = json.loads(to_trace(timelines))
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def test_every_span_is_a_complete_event_in_microseconds(timelines):
    found = events(timelines[:1], "X")
    assert len(found) == len(timelines[0].spans)
    (second,) = (event for event in found if event["name"] == "bucket 1")
    assert second["ts"] == pytest.approx(24_000)
    assert second["dur"] == pytest.approx(12_000)
    assert second["cat"] == "communication"
    assert second["args"] == {"bucket": 1, "detail": "dense, 3 MB"}


def test_events_are_sorted_by_time(timelines):
    starts = [event["ts"] for event in events(timelines, "X")]
    assert starts == sorted(starts)


def test_plans_are_processes_and_rows_are_threads(timelines):
    metadata = events(timelines, "M")
    processes = {
        event["pid"]: event["args"]["name"]
        for event in metadata
        if event["name"] == "process_name"
    }
    assert processes == {1: "optimal", 2: "auto & <more>"}
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in metadata
        if event["name"] == "thread_name"
    }
    used = {(event["pid"], event["tid"]) for event in events(timelines, "X")}
    assert used <= set(threads)
    assert set(threads.values()) == set(ROWS)


def test_events_of_one_thread_do_not_overlap(timelines):
    for thread in {(e["pid"], e["tid"]) for e in events(timelines, "X")}:
        end = 0.0
        for event in events(timelines, "X"):
            if (event["pid"], event["tid"]) == thread:
                assert event["ts"] >= end - 1e-6
                end = event["ts"] + event["dur"]
