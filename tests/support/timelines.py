"""Timelines for renderers to draw."""

from comm_plan.report.timeline import Span, Timeline


def merged() -> Timeline:
    """Return two buckets, the second of which is half exposed."""
    return Timeline(
        title="optimal",
        spans=(
            Span("forward", "forward", 0.0, 0.010),
            Span("backward", "backward", 0.010, 0.030),
            Span("bucket 0", "communication", 0.020, 0.024, 0, "dense, 1 MB"),
            Span("bucket 1", "communication", 0.024, 0.036, 1, "dense, 3 MB"),
            Span("update", "update", 0.036, 0.040),
        ),
        iteration_s=0.040,
        exposed_s=0.006,
    )


def compressed() -> Timeline:
    """Return one compressed bucket with a name that markup could trip over."""
    return Timeline(
        title="auto & <more>",
        spans=(
            Span("forward", "forward", 0.0, 0.010),
            Span("backward", "backward", 0.010, 0.030),
            Span("compress", "compression", 0.030, 0.031, 0),
            Span('bucket "0" <w>', "communication", 0.031, 0.032, 0, "topk [bold] 1 %"),
            Span("decompress", "decompression", 0.032, 0.0325, 0),
            Span("update", "update", 0.0325, 0.0365),
        ),
        iteration_s=0.0365,
        exposed_s=0.001,
    )
