"""The page of a report: everything escaped, and in a browser: no error, no request, all figures, light and dark."""

import re

import pytest
from browsing import load, loads_alone
from test_report import evaluated

from openrlhf_shear.evaluation.comparison.page import make_report, write_report
from openrlhf_shear.evaluation.comparison.runs import Evaluation

ATTACK = "<script>alert(1)</script>"


def run(method, seed, gain, **changes):
    scores = {step: 0.3 + (gain + seed / 100) * (step > 0) + step / 200 for step in (0, 5, 10)}
    steps = tuple(Evaluation(step, {"aime24": at, "amc23": at + 0.2}, at + 0.1) for step, at in scores.items())
    made = {"folder": f"{method}{seed}", "credit": None, "seconds_per_step": 10.0 + gain}
    return evaluated(method=method, seed=seed, **{"evaluations": steps, **made, **changes})


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    credit = {"window": 100, "stride": 25, "distance": "sinkhorn"}
    runs = [run("grpo", seed, 0.0) for seed in range(3)]
    runs += [run("shear", seed, 0.05, credit=credit) for seed in range(3)]
    runs += [run("shear", seed, 0.02, credit=credit | {"distance": "mmd"}) for seed in range(3)]
    runs += [run(ATTACK, 0, 0.01, folder=f"runs/{ATTACK}", notes=(f"{ATTACK} $x^2$ & more",))]
    report = make_report(runs)
    return report, write_report(report, tmp_path_factory.mktemp("report"))[-1]


def test_names_are_text_and_nothing_is_loaded_from_elsewhere(page):
    text = page[1].read_text()
    assert ATTACK not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert text.count("<script") == 1
    addresses = re.findall(r'\b(?:src|srcset|href)="([^"]*)"', text)
    assert len(addresses) > 4 and all(address.startswith(("data:", "#")) for address in addresses)
    assert all(f'id="{address[1:]}"' in text for address in addresses if address.startswith("#"))
    assert "Group size G" in text and "differ in group alone" in text  # the omitted pictures
    assert "$x^2$ &amp; more" in text  # a run's notes


def test_it_loads_without_errors_or_requests(browser, page):
    report, path = page
    loads_alone(browser, path)
    widths = browser.execute_script("return [...document.images].map(image => image.naturalWidth)")
    assert len(widths) == len(report.pictures) > 2 and min(widths) > 0
    assert browser.execute_script("return document.querySelectorAll('table.results tbody th[scope=row]').length") == 4


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two runs without benchmarks, one with a long path."""
    steps = range(1, 13)
    curves = {
        "train/rollout/reward_mean": [(step, step / 20) for step in steps],
        "train/shear/mixed_groups": [(step, 1 - step / 20) for step in steps],
        "train/policy_loss": [(step, step / 1000) for step in steps],
        "train/actor_grad_norm": [(step, 0.5) for step in steps],
        "eval/eval_heldout_pass1": [(0, 0.25), (12, 0.5)],
    }
    notes = ("no evaluation on benchmarks (eval/suite/... in the log, or results.json)",)
    runs = [
        run("shear", seed, 0.0, evaluations=(), curves=curves, notes=notes, folder=f"{'long-name/' * 9}{seed}")
        for seed in range(2)
    ]
    report = make_report(runs)
    return report, write_report(report, tmp_path_factory.mktemp("trained"))[-1]


def test_a_page_begins_with_what_its_runs_hold(browser, trained):
    report, path = trained
    load(browser, path, 1280)
    assert report.progress.rows[0][1:] == (12, "0.150 → 0.500", "25.0 → 50.0", "85 → 50", "0.5 → 0.5")
    headings = browser.execute_script("return [...document.querySelectorAll('h2')].map(n => n.textContent)")
    assert headings == ["First and last", "Figures", "Runs", "Left out"]
    figures = browser.execute_script("return [...document.querySelectorAll('figure h3')].map(n => n.textContent)")
    assert figures == ["Held-out accuracy, heldout", "Rollout reward", "Mixed groups", "Loss", "Gradient"]
    folded = browser.find_element("css selector", "#omitted + details")
    assert not folded.get_attribute("open") and "evaluation on benchmarks" in folded.get_attribute("textContent")
    names = {file.name for file in path.parent.iterdir()}
    assert {"first_and_last.md", "first_and_last.csv", "loss_math_qwen2.5_math_7b.png"} <= names


def test_no_table_of_a_desk_is_wider_than_the_page(browser, trained):
    load(browser, trained[1], 1280)
    wide = "return [...document.querySelectorAll('.scroll')].filter(n => n.scrollWidth > n.clientWidth).length"
    assert browser.execute_script(wide) == 0


@pytest.mark.parametrize("width", [1200, 390])
def test_light_and_dark_at_the_width_of_a_desk_and_a_phone(browser, page, width):
    colours = {}
    for scheme in ("light", "dark"):
        load(browser, page[1], width, scheme)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width  # only tables scroll
        colours[scheme] = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        figure = browser.execute_script("return document.images[0].currentSrc")
        assert (figure == browser.execute_script("return document.images[0].src")) == (scheme == "light")
    assert colours == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 29)"}


def test_a_table_is_sorted_by_keyboard(browser, page):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    load(browser, page[1])
    button = browser.find_elements(By.CSS_SELECTOR, "table.results thead button")[3]  # Avg

    def averages():
        cells = browser.find_elements(By.CSS_SELECTOR, "table.results tbody tr:not(.block) td:nth-child(4)")
        return [float(cell.get_attribute("data-value")) for cell in cells]

    button.send_keys(Keys.ENTER)
    assert averages() == sorted(averages(), reverse=True)
    button.send_keys(Keys.ENTER)
    assert averages() == sorted(averages()) and len(averages()) == 4
    head = browser.find_elements(By.CSS_SELECTOR, "table.results thead th")[3]
    assert head.get_attribute("aria-sort") == "ascending"
