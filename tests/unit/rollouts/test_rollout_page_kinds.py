"""Pages of other rollouts in headless Chromium: several steps, long responses, hundreds of rollouts, NaN."""

import math
from dataclasses import replace

import pytest
from browsing import each, js, load, loads_alone, press, text
from rollout_rows import ATTACKS, SETTINGS, arithmetic_groups, group, long_groups, odd_groups

from openrlhf_shear.rollouts.page import make_page
from openrlhf_shear.rollouts.page import page as pages
from openrlhf_shear.rollouts.record import write_rollouts

ui = pytest.importorskip("selenium.webdriver.support.ui")


def written(folder, rollouts, window):
    path = folder / "page.html"
    path.write_text(make_page(rollouts, SETTINGS | {"window": window}), encoding="utf-8")
    return path


def test_a_step_narrows_the_list(browser, tmp_path):
    path, (first, second) = tmp_path / "page.html", [arithmetic_groups(1, seed=seed) for seed in (0, 1)]
    second = [replace(rollout, group="other") for rollout in second]
    steps = {first[0].group: 1, "other": 20}
    path.write_text(make_page([*first, *second], SETTINGS, steps=steps), encoding="utf-8")
    load(browser, path)
    labels = each(browser, "#step option", "n.textContent")
    right = [sum(rollout.correct for rollout in part) for part in (first, second)]
    assert labels == ["all", f"1: {right[0]} of 8 correct", f"20: {right[1]} of 8 correct"]
    ui.Select(browser.find_element("id", "step")).select_by_value("20")
    assert text(browser, "#found") == "8 of 16 rollouts"
    assert all("other" in row for row in each(browser, ".row", "n.textContent"))


def test_an_overview_leads_to_the_page_of_a_step_and_back(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "MOST", 150_000)
    for step in (1, 20):
        write_rollouts(tmp_path / f"run/step{step:06d}.parquet", odd_groups(), SETTINGS | {"step": step})
    overview, *beside = pages.write_pages(tmp_path / "run", tmp_path / "all #1.html", title=ATTACKS[3])
    loads_alone(browser, overview)
    assert text(browser, "h1") == ATTACKS[3]
    for page, link in zip(beside, each(browser, "main a", "n.href"), strict=True):
        assert link == page.as_uri()
        loads_alone(browser, page)
        assert len(each(browser, ".card .tokens", "n")) > 1
        assert js(browser, "window.hit") is None
    load(browser, overview)
    browser.find_element("link text", "Step 20").click()
    assert "of step 20" in text(browser, "#group-name")
    browser.find_element("link text", "All rollouts").click()
    assert js(browser, "location.href") == overview.as_uri()


@pytest.mark.parametrize(
    ("rule", "words"), [("shear", "the token's weight ω, which"), ("ours", "the token's weight, which")]
)
def test_a_weight_is_named_once_and_the_words_of_an_axis_fit(browser, tmp_path, rule, words):
    rollouts = group("few", [list("ab"), list("cd")], [True, False])
    path = tmp_path / "page.html"
    path.write_text(make_page(rollouts, SETTINGS | {"rule": rule}), encoding="utf-8")
    load(browser, path)
    assert words in text(browser, "#legend-text")
    needed = js(browser, "(() => { const pen = $('heat').getContext('2d'); pen.font = FONT; "
                         "return MARGIN.left + pen.measureText(acrossWords()).width })()")  # fmt: skip
    assert 180 < needed <= js(browser, "parseFloat($('heat').style.width)")


def test_far_tokens_are_scrolled_to_above_the_dock_of_a_phone(browser, tmp_path):
    rollouts = long_groups(1, 8, 900)
    load(browser, written(tmp_path, rollouts, 100), width=390)
    wrong = next(r for r in rollouts if not r.correct)
    js(browser, "selectToken(current.group.rollouts[arguments[0]], 700)", wrong.sample)
    for _ in range(2):
        top, bottom = js(browser, "(r => [r.top, r.bottom])(document.activeElement.getBoundingClientRect())")
        assert top >= 0 and bottom <= js(browser, "document.getElementById('dock').getBoundingClientRect().top")
        press(browser, "o")
    assert js(browser, "document.activeElement.closest('.tokens').rollout.correct") is False


def test_500_rollouts_load_as_light_rows_and_one_group(browser, tmp_path):
    rollouts = long_groups(63, 8, 60, window=20, stride=10)
    load(browser, written(tmp_path, rollouts, 20))
    assert text(browser, "#found") == "504 of 504 rollouts"
    rows, tokens = 500 * 4, sum(len(r.tokens) for r in rollouts[:8])  # li, button, b, span; the rest on demand
    assert js(browser, "document.querySelectorAll('*').length") < rows + tokens + 600
    browser.find_element("id", "more").click()
    assert len(each(browser, ".row", "n.row.sample")) == 504


def test_a_nan_in_the_advantages_of_a_rule_without_weights_takes_no_card(browser, tmp_path):
    """One rollout has a NaN among finite numbers, another nothing else, as has a second group."""
    rows = group("a", [["1", "2"]] * 3, [True, False, False]) + group("b", [["1", "2"]] * 2, [True, False])
    advantages = ([0.5, 0.25], [-0.5, math.nan], *[[math.nan, math.nan]] * 3)
    rows = [replace(row, weights=None, token_advantages=own) for row, own in zip(rows, advantages, strict=True)]
    (tmp_path / "page.html").write_text(make_page(rows, SETTINGS), encoding="utf-8")
    load(browser, tmp_path / "page.html", fragment="#g=a&r=0")
    found = each(browser, ".card .facts", "n.textContent")
    assert len(found) == 3 and [("|token advantage|" in facts) for facts in found] == [True, True, False]
    assert "0.500 to 0.500, mean 0.500" in found[1]
    load(browser, tmp_path / "page.html", fragment="#g=b&r=0")
    found = each(browser, ".card .facts", "n.textContent")
    assert len(found) == 2 and not any("|token advantage|" in facts for facts in found)
