"""The size of the rollout page, the time to make it, and the time until headless Chromium shows its first group.

    python benchmarks/rollout_page.py --output rollout_page.json
    python benchmarks/rollout_page.py --rollouts 64 --loads 2                 # a smoke test

The rollouts are synthetic, in groups of 8, with weights, spans and heatmaps of up to 32 x 32 cells for all 28 pairs of
a group. A load lasts from the navigation to the second frame after the first group's tokens appear, by the page's own
clock. The browser is already running, and its cache holds nothing of the page. Prints a table; --output keeps every
load.
"""

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


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--rollouts", type=int, default=504, help="rollouts of a page, a multiple of 8 (default 504)")
    parser.add_argument("--tokens", type=int, nargs="+", default=[600, 3000], help="mean lengths, a page each")
    parser.add_argument("--loads", type=int, default=7, help="loads of each page (default 7)")
    args = parser.parse_args()
    if args.rollouts < GROUP or args.rollouts % GROUP:
        parser.error(f"--rollouts must be a multiple of {GROUP}: got {args.rollouts}")
    if not (browsing.BROWSER and browsing.DRIVER):
        parser.error(browsing.MISSING)
    found = {"environment": environment("cpu"), "target_seconds": TARGET}
    driver = browsing.start()
    try:
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
