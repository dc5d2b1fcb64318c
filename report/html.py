"""Timelines as one HTML file that needs nothing else: inline SVG, a little script.

Pointing at a span shows its name, times and details; the page works offline, follows a
dark colour scheme, and prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from comm_plan import units
from comm_plan.report.palette import COLORS, EXPOSED, INK, QUIET_INK, color
from comm_plan.report.timeline import ROWS, Span, Timeline, horizon_s

WIDTH = 1000  # of the drawing, in its own units; the page scales it
BAR = 22
GAP = 5
MAX_TICKS = 8

_STYLE = f"""
:root {{ color-scheme: light dark; --ink: {INK}; --quiet: {QUIET_INK};
  --page: #ffffff; --line: #e4e4e4; --hatch: {EXPOSED}; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6edf3; --quiet: #9198a1; --page: #14181d; --line: #30363d; }} }}
body {{ font: 15px/1.45 system-ui, sans-serif; color: var(--ink);
  background: var(--page); max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.35rem; margin-bottom: .4rem; }}
h2 {{ font-size: 1rem; margin: 1.4rem 0 .3rem; }}
h2 span {{ font-weight: normal; color: var(--quiet); margin-left: .6rem; }}
svg {{ display: block; width: 100%; height: auto; }}
rect.span {{ stroke: var(--page); stroke-width: .6; }}
rect.span:hover {{ stroke: var(--ink); stroke-width: 1.5; }}
rect.exposed {{ fill: url(#hatch); pointer-events: none; }}
line {{ stroke: var(--line); }}
text {{ font-size: 11px; fill: var(--quiet); }}
ul {{ list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0;
  color: var(--quiet); font-size: .85rem; }}
li svg {{ display: inline-block; width: 1.3em; height: .8em; margin-right: .4em; }}
#tip {{ position: fixed; display: none; pointer-events: none; white-space: pre-line;
  background: var(--ink); color: var(--page); padding: .35rem .6rem;
  border-radius: 4px; font-size: .8rem; max-width: 24rem; }}
"""

_SCRIPT = """
const tip = document.getElementById("tip");
document.addEventListener("mousemove", event => {
  const span = event.target.closest("rect.span");
  tip.style.display = span ? "block" : "none";
  if (!span) return;
  tip.textContent = span.dataset.tip;
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  tip.style.left = left + "px";
  tip.style.top = event.clientY + 16 + "px";
});
"""

_HATCH = """<svg width="0" height="0" style="position:absolute"><defs>
<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse"
 patternTransform="rotate(45)"><rect width="1.6" height="6" fill="var(--hatch)"/>
</pattern></defs></svg>"""


def to_html(timelines: Sequence[Timeline], title: str) -> str:
    """Return the page that shows ``timelines``, the first on top, to one scale."""
    end_s = horizon_s(timelines)
    body = "\n".join(_section(timeline, end_s) for timeline in timelines)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
{_HATCH}
<h1>{escape(title)}</h1>
{_legend(timelines)}
{body}
<div id="tip" role="tooltip"></div>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _section(timeline: Timeline, end_s: float) -> str:
    share = timeline.exposed_s / timeline.iteration_s
    said = (
        f"{units.seconds(timeline.iteration_s)} an iteration, "
        f"{units.seconds(timeline.exposed_s)} exposed ({units.percent(share)})"
    )
    height = len(ROWS) * (BAR + GAP) + 16
    drawing = "\n".join(_drawing(timeline, end_s))
    return f"""<h2>{escape(timeline.title)}<span>{said}</span></h2>
<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(timeline.title)}">
{drawing}
</svg>"""


def _drawing(timeline: Timeline, end_s: float) -> Iterator[str]:
    scale = WIDTH / end_s
    bottom = len(ROWS) * (BAR + GAP)
    for time_s, label in units.ticks(end_s, at_most=MAX_TICKS):
        x = time_s * scale
        anchor = "start" if x == 0 else "end" if x > 0.97 * WIDTH else "middle"
        at = f'x="{x:.2f}" y="{bottom + 12}" text-anchor="{anchor}"'
        yield f'<line x1="{x:.2f}" x2="{x:.2f}" y1="0" y2="{bottom}"/>'
        yield f"<text {at}>{label}</text>"
    for place, row in enumerate(ROWS):
        for span in timeline.row(row):
            yield _span(span, place * (BAR + GAP), scale)
    y = list(ROWS).index("communication") * (BAR + GAP)
    for start_s, stop_s in timeline.exposed:
        yield _rect("exposed", start_s * scale, (stop_s - start_s) * scale, y, "")


def _span(span: Span, y: float, scale: float) -> str:
    tip = "\n".join(_tip(span))
    extra = f' fill="{color(span)}" data-tip="{escape(tip)}"'
    return _rect("span", span.start_s * scale, span.duration_s * scale, y, extra)


def _tip(span: Span) -> Iterator[str]:
    yield span.name
    if span.name != span.lane:
        yield span.lane
    start, end = units.seconds(span.start_s), units.seconds(span.end_s)
    yield f"{units.seconds(span.duration_s)}, from {start} to {end}"
    if span.detail:
        yield span.detail


def _rect(kind: str, x: float, width: float, y: float, extra: str) -> str:
    return (
        f'<rect class="{kind}" x="{x:.3f}" y="{y}" width="{width:.3f}" '
        f'height="{BAR}"{extra}/>'
    )


def _legend(timelines: Sequence[Timeline]) -> str:
    used = {span.lane for timeline in timelines for span in timeline.spans}
    lanes = [lane for row in ROWS.values() for lane in row if lane in used]
    samples = {lane: _sample(f'fill="{COLORS[lane]}"') for lane in lanes}
    keys = [_key(lane, sample) for lane, sample in samples.items()]
    if any(timeline.exposed for timeline in timelines):
        hatched = samples["communication"] + _sample('class="exposed"')
        keys.append(_key("exposed communication", hatched))
    return "<ul>" + "".join(keys) + "</ul>"


def _key(name: str, sample: str) -> str:
    return f'<li><svg viewBox="0 0 26 16">{sample}</svg>{name}</li>'


def _sample(style: str) -> str:
    return f'<rect width="26" height="16" {style}/>'
