"""What the page's script does, in a browser without a window."""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

from comm_plan.plans import Bucket
from comm_plan.report.page import to_page
from comm_plan.report.page.arrange import arrange
from comm_plan.tests.support import documents as build

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(BROWSERS)} found"),
]

CATCH = """<script>
const seen = { errors: [] };
addEventListener("error", event => seen.errors.push(event.message));
</script>"""

ACT = """<script>
const rows = table => [...table.tBodies[0].rows];
const layers = document.querySelector("#layers table");
const column = i => rows(layers).map(row => Number(row.cells[i].dataset.value));
const click = i => layers.tHead.rows[0].cells[i].querySelector("button").click();
const visible = () => rows(layers).filter(row => row.getClientRects().length).length;
seen.cut = visible();
document.querySelector("#layers .cut-button").click();
seen.whole = visible();
click(2);
seen.ascending = column(2);
click(2);
seen.descending = column(2);
const runs = document.querySelector("#runs table");
const header = [...runs.tHead.rows[0].cells];
const predicted = header.findIndex(cell => cell.textContent === "predicted");
seen.lasts = [0, 1].map(() => {
  header[predicted].querySelector("button").click();
  return rows(runs).at(-1).cells[predicted].textContent;
});

const group = document.querySelector(".timelines");
const last = [...group.querySelectorAll("rect.span")].at(-1);
const width = () => parseFloat(last.getAttribute("width"));
const tip = document.getElementById("tip");
const act = event => { group.dispatchEvent(event); return width(); };
const key = name => new KeyboardEvent("keydown", { key: name, cancelable: true });
seen.widths = [width(), act(key("+")), act(key("0"))];
group.querySelector("svg.spans").dispatchEvent(new WheelEvent("wheel",
  { deltaY: -400, ctrlKey: true, clientX: 300, bubbles: true, cancelable: true }));
seen.widths.push(width(), act(new MouseEvent("dblclick", { bubbles: true })));
last.dispatchEvent(new PointerEvent("pointermove", { bubbles: true }));
seen.tip = [tip.hidden, tip.textContent === last.dataset.tip];
document.body.dataset.seen = JSON.stringify(seen);
</script>"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    layers = 20
    profile = build.profile([0.001] * layers, [1000 - i for i in range(layers)])
    names = [tensor.name for tensor in profile.tensors]
    buckets = Bucket(tensors=tuple(names[:5])), Bucket(tensors=tuple(names[5:]))
    moments = build.timing((0.005, 0.005, 0.012), (0.020, 0.020, 0.028))
    plan = build.plan(profile, *buckets, timing=moments)
    run = build.run(plan, losses=[3.0, 2.0, 1.0], timing=moments)
    other = build.run(plan, predicted_iteration_s=None)
    documents = {"profile": profile, "plan": plan, "run": run, "other": other}
    source = to_page(arrange(documents.items()))
    source = source.replace("<head>", f"<head>{CATCH}").replace("</body>", ACT)
    folder = tmp_path_factory.mktemp("browser")
    (folder / "report.html").write_text(source, encoding="utf-8")
    dumped = subprocess.run(
        [
            BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu",
            f"--user-data-dir={folder / 'user'}", "--virtual-time-budget=10000",
            "--dump-dom", (folder / "report.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert '<html lang="en" class="scripted ready">' in dumped.stdout, dumped.stderr
    found = re.search(r'data-seen="([^"]*)"', dumped.stdout)
    return json.loads(unescape(found[1]))


def test_the_script_runs_without_errors(seen):
    assert seen["errors"] == []


def test_a_header_sorts_and_sorts_back(seen):
    assert seen["ascending"] == list(range(981, 1001))
    assert seen["descending"] == list(range(1000, 980, -1))


def test_what_has_no_value_stays_last(seen):
    assert seen["lasts"] == ["-", "-"]


def test_long_tables_are_cut_until_asked_for(seen):
    assert (seen["cut"], seen["whole"]) == (12, 20)


def test_timelines_zoom_by_key_and_wheel_and_come_back(seen):
    whole, by_key, back, by_wheel, reset = seen["widths"]
    assert by_key == pytest.approx(whole / 0.6, rel=1e-3)
    assert back == pytest.approx(whole, rel=1e-3)
    assert by_wheel == pytest.approx(whole * 2.718, rel=1e-2)
    assert reset == pytest.approx(whole, rel=1e-3)


def test_a_span_shows_its_details(seen):
    assert seen["tip"] == [False, True]
