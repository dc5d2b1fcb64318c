"""Timelines as a trace for ui.perfetto.dev and chrome://tracing.

The Trace Event Format (JSON): every plan is a process, its two rows are threads, every
span a complete event (``"ph": "X"``) with ``ts`` and ``dur`` in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from comm_plan.report.timeline import ROWS, Span, Timeline

TraceEvent = dict[str, Any]


def to_trace(timelines: Sequence[Timeline]) -> str:
    """Return the trace of ``timelines`` as JSON text, events sorted by time."""
    numbered = list(enumerate(timelines, start=1))
    names = [event for pid, timeline in numbered for event in _names(pid, timeline)]
    spans = [event for pid, timeline in numbered for event in _events(pid, timeline)]
    spans.sort(key=lambda event: (event["ts"], event["pid"], event["tid"]))
    trace = {"displayTimeUnit": "ms", "traceEvents": names + spans}
    return json.dumps(trace, indent=1, allow_nan=False) + "\n"


def _names(pid: int, timeline: Timeline) -> Iterator[TraceEvent]:
    yield _metadata("process_name", pid, 0, {"name": timeline.title})
    yield _metadata("process_sort_index", pid, 0, {"sort_index": pid})
    for tid, row in enumerate(ROWS, start=1):
        yield _metadata("thread_name", pid, tid, {"name": row})
        yield _metadata("thread_sort_index", pid, tid, {"sort_index": tid})


def _metadata(name: str, pid: int, tid: int, args: TraceEvent) -> TraceEvent:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _events(pid: int, timeline: Timeline) -> Iterator[TraceEvent]:
    for tid, row in enumerate(ROWS, start=1):
        for span in timeline.row(row):
            yield {
                "name": span.name,
                "cat": span.lane,
                "ph": "X",
                "ts": 1e6 * span.start_s,
                "dur": 1e6 * span.duration_s,
                "pid": pid,
                "tid": tid,
                "args": _args(span),
            }


def _args(span: Span) -> TraceEvent:
    args: TraceEvent = {}
    if span.bucket is not None:
        args["bucket"] = span.bucket
    if span.detail:
        args["detail"] = span.detail
    return args
