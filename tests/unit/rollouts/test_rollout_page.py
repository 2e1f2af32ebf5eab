"""What goes into the rollout page, and what its command refuses."""

import base64
import html
import json
import re
from dataclasses import replace
from urllib.parse import unquote

import numpy as np
import pyarrow.parquet
import pytest
from command_lines import refusal
from rollout_rows import SETTINGS, arithmetic_groups, group

from openrlhf_shear.cli import rollout_page
from openrlhf_shear.report.page import HERE
from openrlhf_shear.rollouts.page import data, make_page
from openrlhf_shear.rollouts.page import page as pages
from openrlhf_shear.rollouts.page.page import summary, write_pages
from openrlhf_shear.rollouts.record import Heatmap, write_rollouts

ATTACK = "</script><!--<script>&\u2028\u2029\ud7ff"


def test_json_survives_and_nothing_in_it_reads_as_markup():
    written = data.to_json({"text": ATTACK, ATTACK: [1, None]})
    assert json.loads(written) == {"text": ATTACK, ATTACK: [1, None]}
    assert written.isascii() and not set("<>&") & set(written)


def test_numbers_keep_all_bits_or_six_digits_and_infinity_is_no_number():
    values = np.random.default_rng(0).lognormal(size=100).astype(np.float32)
    read = np.frombuffer(base64.b64decode(data.floats(values.tolist())), dtype="<f4")
    assert np.array_equal(read, values) and data.floats(None) is None
    assert [data.number(value) for value in (0.12345678, np.inf, np.nan, None)] == [0.123457, None, None, None]


@pytest.mark.parametrize("low, high", [(0.2, 0.7), (3.0, 3.0), (-1e6, 1e-6)])
def test_a_heatmap_is_within_half_a_step(low, high):
    values = np.random.default_rng(0).uniform(low, high, 300)
    values[:3] = low, high, np.inf
    made = data.matrix(Heatmap(1, values.tolist()))
    codes = np.frombuffer(base64.b64decode(made["codes"]), dtype="<u2")
    assert np.array_equal(codes == data.STEPS + 1, ~np.isfinite(values))
    read = made["low"] + made["step"] * codes[np.isfinite(values)]
    assert np.abs(read - values[np.isfinite(values)]).max() <= (high - low) / data.STEPS / 2 * (1 + 1e-9)


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colours, scheme", [(data.LIGHT, 0), (data.DARK, 1)])
def test_shades_only_darken_or_brighten_and_text_on_them_can_be_read(colours, scheme):
    written = [luminance(text) for text in re.findall("--text: (#[0-9a-f]{6})", (HERE / "base.css").read_text())]
    shades = [luminance(colour) for colour in colours]
    assert shades == sorted(shades, reverse=scheme == 0) and len(set(shades)) == len(colours)
    for shade in shades[: data.LEVELS]:
        dark, bright = sorted((shade, written[scheme]))
        assert (bright + 0.05) / (dark + 0.05) >= 4.5


def test_the_summary_counts_what_the_page_shows():
    groups = data.group_rollouts(arithmetic_groups(4))
    assert groups[0][0].correct
    groups[0][0] = replace(groups[0][0], first_error=5)  # right by luck: not one of the incorrect ones
    facts = dict(summary(groups))
    mixed = [rollout for group in groups[:3] for rollout in group]
    assert facts["Groups"] == "4, 3 mixed" and facts["Rollouts"] == "32"
    assert facts["Correct"] == f"{sum(r.correct for group in groups for r in group)} of 32"
    wrong = np.concatenate([r.weights for r in mixed if not r.correct])
    assert facts["Mean weight, incorrect"] == f"{wrong.mean():.4g}"
    erred = [r for r in mixed if not r.correct]
    around = [[np.mean(r.weights[: r.first_error]), np.mean(r.weights[r.first_error :])] for r in erred]
    before, after = np.mean(around, axis=0)
    assert facts["Mean weight, before and from the first error"] == f"{before:.4g} and {after:.4g}"
    assert "Without a reward" not in facts
    failed = [replace(groups[0][0], correct=None, truncated=True)]
    assert dict(summary([failed]))["Without a reward"] == dict(summary([failed]))["Truncated"] == "1"


def made_by_command(tmp_path, *flags):
    path = write_rollouts(tmp_path / "step.parquet", arithmetic_groups(2), SETTINGS)
    rollout_page.main([str(path), "--output", str(tmp_path / "new" / "page.html"), *flags])
    return (tmp_path / "new" / "page.html").read_text()


def test_a_run_shows_all_its_steps_and_the_limit_counts_groups_of_a_step(tmp_path, capsys):
    for step in (1, 20, 40):
        path = tmp_path / f"run/ckpt/rollouts/step{step:06d}.parquet"
        write_rollouts(path, arithmetic_groups(3), SETTINGS | {"step": step, "model": "/data/policies/small"})
    page = tmp_path / "page.html"
    rollout_page.main([str(tmp_path / "run"), "--output", str(page), "--limit", "2"])
    text = page.read_text()
    assert "<h1>Rollouts of steps 1 to 40, small</h1>" in text and "3 more groups of the file left out" in text
    index = json.loads(re.search(r'id="index">(.*?)</script>', text)[1])
    assert [group["step"] for group in index["groups"]] == [1, 1, 20, 20, 40, 40]
    assert index["groups"][2]["name"] == "problem-000 of step 20"
    assert 'id="step"' in text and 'id="step"' not in made_by_command(tmp_path)


def test_a_limit_reads_the_rows_that_it_shows(tmp_path, monkeypatch):
    rows = [row for name in range(40) for row in group(f"{name}", ["ab", "cd"] * 4, [True, False] * 4)]
    for step in (1, 20):
        write_rollouts(tmp_path / f"run/step{step:06d}.parquet", rows, SETTINGS | {"step": step})
    counts, read = [], pyarrow.parquet.ParquetFile.read_row_group

    def counted(file, part):
        table = read(file, part)
        counts.append(table.num_rows)
        return table

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "read_row_group", counted)
    write_pages(tmp_path / "run", tmp_path / "page.html", limit=9)
    assert counts == [64, 64] * 2 and "62 more groups of the file left out" in (tmp_path / "page.html").read_text()
    counts.clear()
    write_pages(tmp_path / "run/step000001.parquet", tmp_path / "page.html")
    assert sum(counts) == len(rows)


def shown_groups(page):
    """The names of a page's groups, each of which it holds."""
    text = page.read_text()
    names = [each["name"] for each in json.loads(re.search(r'id="index">(.*?)</script>', text)[1])["groups"]]
    assert all(f'id="block-{place}"' in text for place in range(len(names)))
    return names


def test_a_large_page_is_cut_into_steps_and_a_large_step_into_parts(tmp_path, monkeypatch, capsys):
    for step, problems in ((1, 2), (20, 7)):
        rows = [replace(row, group=f"{row.group}{ATTACK[:-1]}") for row in arithmetic_groups(problems)]
        write_rollouts(tmp_path / f"run/step{step:06d}.parquet", rows, SETTINGS | {"step": step, "model": ATTACK[:-1]})
    most = 300_000
    monkeypatch.setattr(pages, "MOST", most)
    output = tmp_path / "a 'page'.html"
    page, *beside = write_pages(tmp_path / "run", output)
    names = [each.relative_to(tmp_path).as_posix() for each in beside]
    assert names == [f"a 'page'_steps/{name}.html" for name in ("step1", "step20", "step20_part2")]
    text = page.read_text()
    links = re.findall('<a href="(?!#)(.*?)">(.*?)</a>', text)
    assert [unquote(html.unescape(address)) for address, _ in links] == names
    assert [name for _, name in links] == ["Step 1", "Step 20", "Step 20, part 2"]
    first, *others = map(shown_groups, beside)
    assert first == [f"problem-{i:03d}{ATTACK[:-1]} of step 1" for i in range(2)] and sum(map(len, others)) == 7
    assert all(each.stat().st_size < most for each in (page, *beside))
    for each in (page, *beside):
        assert "</script><!--" not in each.read_text() and each.read_text().count("script-src 'sha256-") == 1
    assert "<td>9</td>" not in text and "<td>56</td>" not in text and "<td>16</td>" in text, "rollouts of each page"
    assert 'href="../a%20%27page%27.html"' in beside[0].read_text()
    monkeypatch.setattr(pages, "MOST", 190_000)
    rollout_page.main([str(tmp_path / "run"), "--output", str(output), "--title", "<b>", "--limit", "2"])
    assert "2 pages to which it leads" in capsys.readouterr().out
    assert "<h1>&lt;b&gt;</h1>" in page.read_text() and "5 more groups left out" in page.read_text()
    monkeypatch.setattr(pages, "MOST", 20e6)
    assert write_pages(tmp_path / "run", output) == [output] and len(shown_groups(output)) == 9


def test_folders_that_are_no_run_are_refused_in_a_line(tmp_path, capsys):
    def refused(folder):
        return refusal(capsys, [folder, "--output", tmp_path / "page.html"], rollout_page.main)

    (tmp_path / "empty").mkdir()
    assert "--credit.dump_rollouts_every" in refused(tmp_path / "empty")
    for name in ("a", "b"):
        write_rollouts(tmp_path / "two" / name / "step000001.parquet", arithmetic_groups(1), SETTINGS)
    assert "several runs; name a run" in refused(tmp_path / "two")
    write_rollouts(tmp_path / "two/a/step000002.parquet", arithmetic_groups(1), SETTINGS | {"window": 8})
    assert "differ in their window" in refused(tmp_path / "two/a")


def test_weights_and_the_legend_of_errors_are_named_only_if_they_are_there():
    page = make_page(arithmetic_groups(), SETTINGS)
    assert "a bar marks the first error" in page
    unknown = [replace(rollout, first_error=None) for rollout in arithmetic_groups()]
    assert "a bar marks" not in make_page(unknown, SETTINGS)


def test_the_command_prints_where_the_page_is_and_its_size(tmp_path, capsys):
    text = made_by_command(tmp_path)
    assert capsys.readouterr().out == f"{tmp_path / 'new' / 'page.html'}: {len(text.encode()) / 1e6:.2f} MB\n"
    assert "<h1>Rollouts of step 40, arithmetic policy (synthetic)</h1>" in text
    assert "<h1>A &lt;b&gt; title</h1>" in made_by_command(tmp_path, "--title", "A <b> title")


def test_a_page_that_cannot_be_written_is_one_clear_line(tmp_path, capsys):
    good = write_rollouts(tmp_path / "good.parquet", group("g", ["ab", "cd"], [True, False]), SETTINGS)
    assert "cannot be written" in refusal(capsys, [good, "--output", good / "page.html"], rollout_page.main)


@pytest.mark.parametrize(
    ("settings", "shown"), [({}, "shear"), ({"rule": "rule", "estimator": "my_rule:MyRule/power=2"}, "MyRule, power 2")]
)
def test_a_rule_reads_well_and_panels_that_would_be_empty_stay_away(settings, shown):
    rollouts = arithmetic_groups()
    pages = (
        make_page(rollouts, SETTINGS | settings),
        make_page([bare(rollout) for rollout in rollouts], SETTINGS | settings),
    )
    assert all(f"<dt>Rule</dt><dd>{shown}</dd>" in page for page in pages)
    assert [('<details class="heat" open hidden>' in page, "Enter for its span" in page) for page in pages] == [
        (False, True),
        (True, False),
    ]


def bare(rollout):
    """Without what only some rules show."""
    spans = dict.fromkeys(
        ("span_starts", "span_distances", "nearest_sample", "nearest_span", "heatmap_spans", "heatmaps")
    )
    return replace(rollout, **spans)
