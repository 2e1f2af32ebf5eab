"""The size of the rollout page, the time to make it, and the time until headless Chromium shows its first group.

    python benchmarks/rollout_page.py --output rollout_page.json
    python benchmarks/rollout_page.py --rollouts 64 --loads 2                 # a smoke test
    python benchmarks/rollout_page.py --picture page.png PAGE.html            # a picture of a page, as docs/ has it

The rollouts are synthetic, in groups of 8, with weights, spans and heatmaps of up to 32 x 32 cells for all 28 pairs of
a group. A load lasts from the navigation to the second frame after the first group's tokens appear, by the page's own
clock. The browser is already running, and its cache holds nothing of the page. Prints a table; --output keeps every
load.
"""

import base64
import statistics
import sys
import tempfile
import time
from pathlib import Path

from measure import environment, print_table, script_parser, write_json

from openrlhf_shear.rollouts.page import make_page

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "unit"))
import browsing
import rollout_rows

GROUP = 8
SETTINGS = {"rule": "shear", "window": 100, "stride": 25, "step": 1}
TARGET = 2.0  # seconds, for 500 rollouts
SIZE = {"width": 1280, "height": 1180}  # of the picture, pixels
# In the first group with a known first error: the token after the error, whose span is selected.
_SELECT = """
const erred = current.group.rollouts.find(one => one.error > 0 && one.error + 2 < one.length);
if (erred) { openRow(rowOf(erred)); focusToken(erred, erred.error + 2); selectToken(erred, erred.error + 2); }
scrollTo(0, 0);
"""


def measure(driver, rollouts: int, tokens: int, loads: int, folder: Path) -> dict:
    """Measure a page: its size, the time to make it, and its loads."""
    rows = rollout_rows.long_groups(rollouts // GROUP, GROUP, tokens)
    path = folder / "page.html"
    begin = time.perf_counter()
    path.write_text(make_page(rows, SETTINGS), encoding="utf-8")
    made = time.perf_counter() - begin
    seconds = [_load(driver, path) for _ in range(loads)]
    return {
        **{"rollouts": len(rows), "tokens": tokens, "megabytes": path.stat().st_size / 1e6, "make_seconds": made},
        **{"load_seconds": seconds, "median": statistics.median(seconds), "worst": max(seconds)},
        "nodes": driver.execute_script("return document.querySelectorAll('*').length"),
        "met": max(seconds) < TARGET,
    }


def _load(driver, path: Path) -> float:
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get("about:blank")
    browsing.load(driver, path)
    ready = "return document.documentElement.dataset.ready"
    return float(WebDriverWait(driver, 60).until(lambda driver: driver.execute_script(ready))) / 1000


def photograph(driver, page: Path, picture: Path) -> None:
    """Write a PNG of a page on which the span after a first error is selected."""
    browsing.load(driver, page.resolve())
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**SIZE, "deviceScaleFactor": 1, "mobile": False})
    driver.execute_script(_SELECT)
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    picture.write_bytes(base64.b64decode(shot["data"]))


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--rollouts", type=int, default=504, help="rollouts of a page, a multiple of 8 (default 504)")
    parser.add_argument("--tokens", type=int, nargs="+", default=[600, 3000], help="mean lengths, a page each")
    parser.add_argument("--loads", type=int, default=7, help="loads of each page (default 7)")
    parser.add_argument("--picture", nargs=2, type=Path, metavar=("OUT.png", "PAGE.html"), help="measure nothing")
    args = parser.parse_args()
    if args.rollouts < GROUP or args.rollouts % GROUP:
        parser.error(f"--rollouts must be a multiple of {GROUP}: got {args.rollouts}")
    if not (browsing.BROWSER and browsing.DRIVER):
        parser.error(browsing.MISSING)
    driver = browsing.start()
    try:
        if args.picture:
            picture, page = args.picture
            photograph(driver, page, picture)
            return
        found = {"environment": environment(), "target_seconds": TARGET}
        with tempfile.TemporaryDirectory() as folder:
            pages = [measure(driver, args.rollouts, tokens, args.loads, Path(folder)) for tokens in args.tokens]
        found["browser"] = driver.capabilities["browserVersion"]
    finally:
        driver.quit()
    columns = {"tokens": "tokens", "rollouts": "rollouts", "megabytes": "MB", "make_seconds": "s to make"}
    columns |= {"median": "s to open, median", "worst": "worst", "nodes": "elements", "met": f"under {TARGET:.0f} s"}
    print_table("the rollout page", pages, columns)
    write_json(args.output, found | {"pages": pages})


if __name__ == "__main__":
    main()
