"""The rollout page in headless Chromium shows the rollouts' values, by pointer and by keyboard."""

import re

import numpy as np
import pytest
from browsing import each, js, load, loads_alone, press, text
from rollout_rows import ATTACKS, SETTINGS, WINDOW, odd_groups

from openrlhf_shear.rollouts.page import data, make_page

webdriver, ui = pytest.importorskip("selenium.webdriver"), pytest.importorskip("selenium.webdriver.support.ui")
ActionChains, Keys, Select = webdriver.ActionChains, webdriver.Keys, ui.Select
ROLLOUTS = odd_groups()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(make_page(ROLLOUTS, SETTINGS | {"note": ATTACKS[1]}), encoding="utf-8")
    return path


def of(name, sample):
    return next(r for r in ROLLOUTS if (r.group, r.sample) == (name, sample))


def opened(browser, page, name="problem-000", sample=0, **view):
    load(browser, page, fragment=f"#g={name}&r={sample}", **view)


def card(browser, rollout):
    return browser.find_element("css selector", f"[aria-label='Response of rollout {rollout.sample}']")


def token(browser, rollout, at):
    return card(browser, rollout).find_elements("css selector", ".t")[at]


def framed(browser, kind):
    """(sample, tokens) of the frames of a kind in the cards."""
    found = each(browser, f".card .{kind}", "[n.closest('.tokens').rollout.sample, n.token]")
    return {sample for sample, _ in found}, [at for _, at in found]


def span_of(rollout, at):
    """The span that a token is judged by, and the tokens of it and of its nearest one."""
    covering = [k for k, s in enumerate(rollout.span_starts) if s <= at < s + WINDOW]
    k = max(covering, key=lambda k: rollout.span_distances[k])
    other = of(rollout.group, rollout.nearest_sample[k])
    return k, tokens_of(rollout, k), other, tokens_of(other, rollout.nearest_span[k])


def tokens_of(rollout, k):
    start = rollout.span_starts[k]
    return list(range(start, min(start + WINDOW, len(rollout.tokens))))


def levels(browser, rollout):
    """The shades of a response's tokens."""
    names = js(browser, "[...arguments[0].querySelectorAll('.t')].map(t => t.className)", card(browser, rollout))
    return [int(re.search(r"\bw(\d)", name)[1]) for name in names]


def test_it_loads_without_errors_or_requests(browser, page):
    loads_alone(browser, page)
    ready = ui.WebDriverWait(browser, 30).until(lambda browser: js(browser, "document.documentElement.dataset.ready"))
    assert float(ready) > 0
    assert text(browser, "#group-name") == "Group problem-000"
    shown = each(browser, ".card .tokens", "[...n.querySelectorAll('.t')].map(t => t.textContent).join('')")
    assert sorted(shown) == sorted(r.response for r in ROLLOUTS[:8])


@pytest.mark.parametrize("width", [1400, 390])
def test_light_and_dark_at_the_width_of_a_desk_and_a_phone(browser, page, width):
    colours = {}
    for scheme in ("light", "dark"):
        for name in ("problem-000", "odd"):
            opened(browser, page, name, width=width, scheme=scheme)
            rollout = of(name, 0)
            js(browser, "arguments[0].click()", token(browser, rollout, 10))
            assert js(browser, "document.documentElement.scrollWidth") <= width
        colours[scheme] = js(browser, "[getComputedStyle(document.body).backgroundColor, getComputedStyle("
                             "document.querySelector('.w9')).backgroundColor]")  # fmt: skip
    assert colours == {
        "light": ["rgb(255, 255, 255)", "rgb(229, 131, 42)"],
        "dark": ["rgb(21, 24, 29)", "rgb(138, 79, 12)"],
    }


def test_a_phone_shows_a_response_before_the_facts_and_the_list(browser, page):
    places = ["#asked", ".card .tokens", "#strips", "#side", "#about"]
    tops = "document.querySelector(arguments[0]).getBoundingClientRect().top"

    def order(width):
        opened(browser, page, width=width)
        js(browser, "window.scrollTo(0, 0)")
        return sorted(places, key=lambda place: js(browser, tops, place))

    assert order(390) == places
    assert js(browser, f"{tops} + scrollY", ".card .tokens") < 900, "on the first screen"
    assert order(1280)[0] == "#about" and order(1280)[-1] == ".card .tokens"


def test_hostile_text_is_shown_and_not_run(browser, page):
    browser.get_log("browser")
    load(browser, page)
    scripts = js(browser, "document.scripts.length")
    hostile = ROLLOUTS[32]
    js(browser, "[...document.querySelectorAll('.row')].find(r => r.textContent.includes('window.hit'))").click()
    js(browser, "arguments[0].click()", token(browser, hostile, 3))
    assert text(browser, "#prompt") == text(browser, "#label") == hostile.prompt
    assert text(browser, "#group-name") == f"Group {hostile.group}"
    seen = js(browser, "[...arguments[0].querySelectorAll('.t')].map(t => t.textContent)", card(browser, hostile))
    assert seen[:7] == list(ATTACKS[:7])
    assert seen[7:14] == ["↵\n", "↵\n↵\n", "⇥\t", "∅", " ", "<b>", "␛[0m"]
    assert ATTACKS[1] in text(browser, "header details")
    assert js(browser, "typeof window.hit") == "undefined"
    assert js(browser, "document.scripts.length") == scripts
    assert js(browser, "document.querySelectorAll('main img, main script, main b > b').length") == 0
    assert browser.get_log("browser") == []  # the content security policy would log here what it blocked
    assert js(browser, "getComputedStyle(document.querySelector('.t')).unicodeBidi") == "isolate"


def test_by_keys_alone_from_the_load_to_the_nearest_span_and_back(browser, page):
    load(browser, page)
    for _ in range(12):
        press(browser, Keys.TAB)
        if js(browser, "document.activeElement.classList.contains('row')"):
            break
    press(browser, *[Keys.ARROW_DOWN] * 4, Keys.ENTER)
    rollout = of("problem-000", 4)
    assert js(browser, "document.activeElement.closest('.tokens')?.rollout.sample") == 4
    press(browser, *[Keys.ARROW_RIGHT] * 31, Keys.ARROW_LEFT)
    assert js(browser, "document.activeElement.token") == 30
    assert f"ω {rollout.weights[30]:#.4g} " in text(browser, "#readout")
    press(browser, Keys.ENTER)
    k, own, other, near = span_of(rollout, 30)
    assert framed(browser, "sel") == ({4}, own) and framed(browser, "near") == ({other.sample}, near)
    assert f"Distance {rollout.span_distances[k]:#.4g}" in text(browser, "#verdict")
    press(browser, "o")
    where = "[document.activeElement.closest('.tokens').rollout.sample, document.activeElement.token]"
    assert js(browser, where) == [other.sample, near[0]]
    press(browser, "o")
    assert js(browser, where) == [4, own[0]]
    press(browser, Keys.ESCAPE)
    assert framed(browser, "sel") == framed(browser, "near") == (set(), [])
    press(browser, "e")
    assert js(browser, where) == [4, rollout.first_error]
    press(browser, "w")
    assert js(browser, where) == [4, int(np.argmax(np.array(rollout.weights, dtype=np.float32)))]
    press(browser, "n")
    assert js(browser, where)[0] == 5
    press(browser, "p", "p")
    assert js(browser, where)[0] == 3
    assert js(browser, "document.querySelectorAll('.card [tabindex=\"0\"]').length") == 8  # one stop a response


def test_lines_are_walked_by_arrow_keys(browser, page):
    opened(browser, page, "problem-001", 0, width=390)
    card(browser, of("problem-001", 0)).find_element("css selector", ".t").click()
    place = "(r => [r.left, r.top, document.activeElement.token])(document.activeElement.getClientRects()[0])"
    press(browser, *[Keys.ARROW_RIGHT] * 6)
    left, top, at = js(browser, place)
    assert at == 6
    press(browser, Keys.ARROW_DOWN)
    below = js(browser, place)
    assert below[1] > top and below[2] > at and abs(below[0] - left) < 20
    press(browser, Keys.ARROW_UP)
    assert js(browser, place)[2] == at


def test_help_search_and_keys_that_can_be_turned_off(browser, page):
    load(browser, page)
    press(browser, "?")
    assert js(browser, "document.getElementById('keys').open")
    browser.find_element("id", "letters").click()
    press(browser, Keys.ESCAPE)
    press(browser, "/")
    assert js(browser, "document.activeElement.id") != "search"
    js(browser, "document.getElementById('letters').click()")
    press(browser, "/")
    assert js(browser, "document.activeElement.id") == "search"


def test_the_value_under_the_pointer_is_that_of_the_rollout(browser, page):
    rollout = of("problem-001", 5)
    opened(browser, page, "problem-001", 5)
    for at in (0, 17, len(rollout.tokens) - 1):
        ActionChains(browser).move_to_element(token(browser, rollout, at)).perform()
        k, own, other, near = span_of(rollout, at)
        assert text(browser, "#readout") == (
            f"Rollout 5, token {at} “{rollout.tokens[at]}” · ω {rollout.weights[at]:#.4g} · span of tokens {own[0]} to "
            f"{own[-1]} · distance {rollout.span_distances[k]:#.4g} to the nearest opposing span: "
            f"rollout {other.sample}, tokens {near[0]} to {near[-1]}"
        )


def test_a_click_frames_the_span_and_its_nearest_one_and_shows_both_side_by_side(browser, page):
    rollout = of("problem-002", 6)
    opened(browser, page, "problem-002", 6)
    for at in (3, 40, len(rollout.tokens) - 1):
        token(browser, rollout, at).click()
        _, own, other, near = span_of(rollout, at)
        assert framed(browser, "sel") == ({6}, own) and framed(browser, "near") == ({other.sample}, near)
        beside = [each(browser, f"#comparison .t.{kind}", "n.textContent") for kind in ("sel", "near")]
        assert beside == [[rollout.tokens[i] for i in own], [other.tokens[i] for i in near]]
        box = js(browser, "document.activeElement.getBoundingClientRect().bottom")
        assert box <= js(browser, "document.getElementById('dock').getBoundingClientRect().top")  # not covered
    assert js(browser, "location.hash") == "#g=problem-002&r=6"
    assert text(browser, ".row[aria-current=true]").startswith("✗ incorrect problem-002 · 6")


def test_the_heatmap_reads_the_same_both_ways(browser, page):
    first, second = of("problem-000", 2), of("problem-000", 5)
    kept = next(heat for heat in first.heatmaps if heat.other == 5)
    values = np.array(kept.values).reshape(len(first.heatmap_spans), len(second.heatmap_spans))
    half_step = (values.max() - values.min()) / data.STEPS / 2
    opened(browser, page, "problem-000", 2)
    for rows, columns, value in ((first, second, values[2, 1]), (second, first, values[1, 2])):
        choose(browser, **{"heat-a": str(rows.sample), "heat-b": str(columns.sample)})
        js(browser, "document.getElementById('heat').focus()")
        press(browser, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
        told = text(browser, "#heat-value")
        own, other = (tokens_of(r, r.heatmap_spans[k]) for r, k in ((rows, 2), (columns, 1)))
        assert told.partition(": ")[2] == (
            f"rollout {rows.sample} tokens {own[0]} to {own[-1]}, "
            f"rollout {columns.sample} tokens {other[0]} to {other[-1]}"
        )
        assert abs(float(told.split(":")[0]) - value) <= half_step + 0.5e-4  # and four digits are shown
        press(browser, Keys.ENTER)
        assert framed(browser, "sel") == ({rows.sample}, own) and framed(browser, "near") == ({columns.sample}, other)


def test_a_heatmap_cell_is_read_and_chosen_by_pointer(browser, page):
    opened(browser, page, "problem-000", 2)
    first, second = (of("problem-000", s) for s in js(browser, "[heat.a.sample, heat.b.sample]"))
    canvas = browser.find_element("id", "heat")
    x, y = js(browser, "[MARGIN.left + 7.5 * heat.cell, MARGIN.top + 4.5 * heat.cell]")
    from_middle = int(x - canvas.size["width"] / 2), int(y - canvas.size["height"] / 2)
    ActionChains(browser).move_to_element_with_offset(canvas, *from_middle).click().perform()
    assert framed(browser, "sel") == ({first.sample}, tokens_of(first, first.heatmap_spans[4]))
    assert framed(browser, "near") == ({second.sample}, tokens_of(second, second.heatmap_spans[7]))
    painted = js(browser, "[...document.getElementById('heat').getContext('2d').getImageData("
                 "...arguments[0].map(at => at * devicePixelRatio), 1, 1).data]", [int(x), int(y)])  # fmt: skip
    wanted = js(browser, "getComputedStyle(document.documentElement).getPropertyValue('--w' + "
                "level(heat.map.value(4, 7), heat.range, COLOURS))")  # fmt: skip
    assert "#" + "".join(f"{c:02x}" for c in painted[:3]) == wanted


def listed(browser):
    return each(browser, ".row", "[INDEX.groups[n.row.group].name, n.row.sample]")


def choose(browser, **values):
    for name, value in values.items():
        Select(browser.find_element("id", name)).select_by_value(value)


def names(rollouts):
    return [[rollout.group, rollout.sample] for rollout in rollouts]


def test_filters_and_sorting(browser, page):
    load(browser, page)
    assert listed(browser) == names(ROLLOUTS)
    choose(browser, sort="spread")
    known = [r for r in ROLLOUTS if data.shading(r) is not None]
    order = sorted(known, key=lambda r: -float(f"{np.std(data.shading(r).astype(float)):.6g}"))
    assert listed(browser) == names([*order, *(r for r in ROLLOUTS if data.shading(r) is None)])  # without one: last
    choose(browser, sort="length")
    assert listed(browser) == names(sorted(ROLLOUTS, key=lambda r: -len(r.tokens)))
    browser.find_element("id", "direction").click()
    assert listed(browser) == names(sorted(ROLLOUTS, key=lambda r: len(r.tokens)))
    choose(browser, sort="reward", outcome="false")
    assert listed(browser) == names(r for r in ROLLOUTS if r.correct is False)
    choose(browser, outcome="null")
    assert listed(browser) == [["odd", 3]]
    choose(browser, outcome="all", sort="group")
    browser.find_element("id", "mixed").click()
    assert listed(browser) == names(r for r in ROLLOUTS if r.group != "problem-003")
    assert text(browser, "#found") == f"{len(ROLLOUTS) - 8} of {len(ROLLOUTS)} rollouts"
    browser.find_element("id", "search").send_keys(of("problem-001", 6).response.upper()[10:30])
    js(browser, "narrow()")  # without its short wait
    assert listed(browser) == [["problem-001", 6]]


def test_the_first_error_is_marked_in_the_text_and_in_words(browser, page):
    rollout = of("problem-000", 4)
    opened(browser, page, "problem-000", 4)
    marked = js(browser, "[...arguments[0].querySelectorAll('.t.error')].map("
                "t => [t.token, t.previousSibling.textContent])", card(browser, rollout))  # fmt: skip
    assert marked == [[rollout.first_error, "first error"]]
    note = js(browser, "arguments[0].closest('.card').querySelector('.note.error').textContent", card(browser, rollout))
    assert note == f"First error: token {rollout.first_error} “{rollout.tokens[rollout.first_error]}”"
    answer = js(browser, "arguments[0].querySelector('.flag.answer').nextSibling.token", card(browser, rollout))
    assert answer == rollout.answer_start
    opened(browser, page, "odd", 0)
    end = js(browser, "arguments[0].lastChild.textContent", card(browser, of("odd", 0)))
    assert end == "first error: it ends here"


def test_groups_without_weights_say_so(browser, page):
    opened(browser, page, "problem-003", 1)
    assert "not mixed" in text(browser, "#legend-text") and "Not mixed" in text(browser, "#group-facts")
    assert js(browser, "document.querySelectorAll('.card [class*=\" w\"]').length") == 0
    token(browser, of("problem-003", 1), 5).click()
    assert "nothing opposes" in text(browser, "#verdict") and framed(browser, "sel") == (set(), [])
    opened(browser, page, "own-advantages", 1)
    rollout = of("own-advantages", 1)
    assert "size of the token's own advantage" in text(browser, "#legend-text")
    assert "holds no distances" in text(browser, "#heat-words")  # of this group; others have some
    shades = levels(browser, rollout)
    assert shades == sorted(shades) and shades[0] == 0 and shades[-1] == 9
    token(browser, rollout, 4).click()
    assert "token advantage -0.9000" in text(browser, "#readout") and "no spans" in text(browser, "#verdict")


def test_cards_say_the_advantage_and_its_sign_the_length_and_what_is_missing(browser, page):
    opened(browser, page, "odd", 1)
    by = {int(re.match(r"Rollout (\d)", told)[1]): told for told in each(browser, ".card", "n.textContent")}
    assert "✓ correct" in by[0] and f"+{of('odd', 0).advantage:.3g}, reinforced" in by[0]
    assert "✗ incorrect" in by[1] and ", discouraged" in by[1] and "30 tokens, truncated" in by[1]
    assert "The response is empty" in by[2]
    assert "? no reward" in by[3] and "not known" in by[3]
    weights = of("odd", 1).weights
    assert f"{min(weights):#.3g} to {max(weights):#.3g}, mean {np.mean(weights):#.3g}" in by[1]


def test_shades_follow_the_range_that_is_chosen(browser, page):
    rollout = of("problem-001", 4)
    opened(browser, page, "problem-001", 4)
    weights = np.array(rollout.weights, dtype=np.float32).astype(float)
    for choice, among in (("group", [r for r in ROLLOUTS if r.group == "problem-001"]), ("page", ROLLOUTS)):
        choose(browser, range=choice)
        every = np.concatenate([r.weights for r in among if r.weights])
        low, high = float(f"{every.min():.6g}"), float(f"{every.max():.6g}")
        wanted = np.clip(np.floor((weights - low) / (high - low) * 10), 0, 9)
        assert levels(browser, rollout) == wanted.tolist()
        assert each(browser, "#ramp-ends span", "n.textContent")[::2] == [f"{low:#.4g}", f"{high:#.4g}"]


def test_strips_show_a_group_at_a_glance_and_lead_to_its_tokens(browser, page):
    rollout = of("problem-001", 6)
    opened(browser, page, "problem-001", 0, width=390)
    strips = browser.find_elements("css selector", "#strips button")
    assert [strip.text for strip in strips] == [f"{r.sample} {'✓' if r.correct else '✗'}" for r in ROLLOUTS[8:16]]
    canvas = strips[6].find_element("tag name", "canvas")
    js(browser, "arguments[0].scrollIntoView({block: 'center'})", canvas)  # the dock covers the end of the screen
    canvas.click()  # its middle
    at = js(browser, "document.activeElement.token")
    assert abs(at - len(rollout.tokens) / 2) <= 1
    assert js(browser, "document.activeElement.closest('.tokens').rollout.sample") == 6
    assert text(browser, ".card[aria-current=true] h4").startswith("Rollout 6")
    middle, error = js(browser, "(pen => arguments[1].map(x => [...pen.getImageData(x, 7, 1, 1).data]))"
                       "(arguments[0].getContext('2d'))", canvas,
                       [300, round((rollout.first_error + 0.2) * 600 / len(rollout.tokens))])  # fmt: skip
    colours = js(browser, "['--w' + level(arguments[0], current.range), '--error'].map(name => "
                 "getComputedStyle(document.body).getPropertyValue(name))",
                 rollout.weights[int(len(rollout.tokens) / 2)])  # fmt: skip
    assert ["#" + "".join(f"{c:02x}" for c in pixel[:3]) for pixel in (middle, error)] == colours


def test_a_row_that_is_tapped_on_a_phone_leads_to_its_group_or_response(browser, page):
    opened(browser, page, "problem-000", 0, width=390)
    rows = browser.find_elements("css selector", ".row")
    for row, shown in ((rows[9], "#group-name"), (rows[12], ".card[aria-current=true]")):
        js(browser, "scrollTo(0, 0)")
        row.click()
        top = js(browser, "document.querySelector(arguments[0]).getBoundingClientRect().top", shown)
        assert 0 <= top < 100
    assert text(browser, "#group-name") == "Group problem-001"
    assert text(browser, ".card[aria-current=true] h4").startswith("Rollout 4")
