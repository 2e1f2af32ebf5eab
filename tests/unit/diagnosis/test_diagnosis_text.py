"""The text control: its distances against a float64 oracle by loops, its files, and the words of the verdict."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import cases
from diagnosis_tables import SETTINGS, drawn_prefixes, rollout, spans_of, text_of
from test_shear_weights import ACCURACY, oracle

from openrlhf_shear.config import SearchConfig
from openrlhf_shear.diagnosis import text as module
from openrlhf_shear.diagnosis.findings import find
from openrlhf_shear.diagnosis.text import text_control
from openrlhf_shear.diagnosis.verdict import compared
from openrlhf_shear.report.bootstrap import Bootstrap, Quantity, difference
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.findings import plain

TEXTS = ([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 9, 5, 6], [1, 2, 3, 4, 8, 8, 8, 8], [2, 3, 4, 5], [1, 2, 3, 4, 5, 8])
CORRECT = (True, False, True, False, False)
STARTS = ([0, 2, 4], [0, 2, 4], [0, 2, 4, 6], [0, 2], [0, 2, 4])  # of window 3 and stride 2
KNOBS = {"window": 3, "stride": 2, "epsilon_rel": 0.05}
CONTROLS = {"same_distances": [0.1]}


def group(name="a", texts=TEXTS, correct=CORRECT, **more):
    rows = zip(texts, correct, STARTS, strict=True)
    return [
        rollout(name, i, outcome, [1.0] * len(ids), token_ids=list(ids), span_starts=starts, **more)
        for i, (ids, outcome, starts) in enumerate(rows)
    ]


def one_hot(texts, ngram):
    """An axis for every n-gram, by a dict of tuples; the first tokens' n-grams begin with None."""
    axes, rows = {}, []
    for text in texts:
        padded = [None] * (ngram - 1) + list(text)
        rows.append([axes.setdefault(tuple(padded[t : t + ngram]), len(axes)) for t in range(len(text))])
    return [torch.eye(len(axes), dtype=torch.float64)[row] for row in rows]


@pytest.mark.parametrize("ngram", [1, 2, 3])
def test_distances_are_the_oracle_s_on_one_hot_vectors_to_either_outcome(ngram, tmp_path):
    made = text_control(tmp_path, group(**CONTROLS), KNOBS, ngram, SearchConfig()).spans
    states, knobs = one_hot(TEXTS, ngram), {"window": 3, "stride": 2, "epsilon": 0.05}
    weights, distances = oracle(states, CORRECT, **knobs)
    for i in range(len(TEXTS)):
        found = made["a", i]
        # ACCURACY is the search's, in units of epsilon, which is 0.05 here
        assert found.weights == pytest.approx(weights[i], abs=ACCURACY * 0.05)
        assert found.span_distances == pytest.approx(distances[i], abs=ACCURACY * 0.05)
        others = [j for j in range(len(TEXTS)) if j != i and CORRECT[j] == CORRECT[i]]
        alone = oracle([states[j] for j in (i, *others)], [True, *[False] * len(others)], **knobs)[1][0]
        assert found.same_distances == pytest.approx(alone, abs=ACCURACY * 0.05)


def test_each_group_is_measured_once_and_again_if_anything_differs(tmp_path, monkeypatch):
    measured = []

    def shown(states, *rest):
        measured.append(len(states))
        return original(states, *rest)

    original = module.shear_weights
    monkeypatch.setattr(module, "shear_weights", shown)
    rollouts = [*group("a"), *group("b"), rollout("unmixed", 0, True)]

    def calls(rollouts, knobs=KNOBS, ngram=2):
        measured.clear()
        made = text_control(tmp_path, rollouts, knobs, ngram, SearchConfig())
        return made, len(measured)

    first, number = calls(rollouts)
    assert number == 2 and set(first.spans) == {(name, i) for name in "ab" for i in range(5)}
    assert first.spans["a", 0].same_distances is None and first.label == "2-grams of the text"
    assert calls(rollouts) == (first, 0)
    (tmp_path / "group00001.parquet").unlink()  # as after an interruption
    assert calls(rollouts) == (first, 1)
    assert calls([*group("a", (*TEXTS[:4], [1, 2, 3, 4, 5, 9])), *group("b")])[1] == 1
    assert calls(rollouts, ngram=3)[1] == 2
    assert calls(rollouts, {**KNOBS, "epsilon_rel": 0.1})[1] == 2
    assert calls([replace(r, **CONTROLS) for r in rollouts])[1] == 2 * (1 + 5)  # each rollout against its own outcome
    (tmp_path / "group00000.parquet").write_bytes(b"half a file")
    assert calls([replace(r, **CONTROLS) for r in rollouts])[1] == 1 + 5


def test_a_rollout_of_unknown_outcome_has_no_distance(tmp_path):
    unknown = group(correct=(True, False, True, None, None), **CONTROLS)
    made = text_control(tmp_path, unknown, KNOBS, 2, SearchConfig()).spans
    assert made["a", 4].same_distances == made["a", 4].span_distances == [np.inf] * 3
    assert made["a", 1].same_distances == [np.inf] * 3 and np.isfinite(made["a", 1].span_distances).all()


@pytest.fixture(scope="module")
def tables():
    """Prefixes whose success falls with the distance, and the same with distances that have nothing to do with it."""
    rng = np.random.default_rng(1)
    telling = drawn_prefixes(rng, problems=40, samples=6, positions=5, slope=-1.6)
    return telling, telling.assign(distance=rng.uniform(0.2, 1.0, len(telling)))


def found(prefixes, text, resamples=60):
    return find(prefixes, spans_of(prefixes), SETTINGS, resamples, text=text_of(text))


@pytest.mark.parametrize(*cases("diagnosis", "test_the_verdict_says_which_of_the_two_tells_more"))
def test_the_verdict_says_which_of_the_two_tells_more(tables, states, text, signs, words, total):
    of = dict(zip(("telling", "blind"), tables, strict=True))
    telling, blind = tables
    wrong = ~telling["correct"].to_numpy()
    of["half"], of["other half"] = (
        own.assign(distance=np.where(wrong, own["distance"], other["distance"]))
        for own, other in ((telling, blind), (blind, telling))
    )
    of["few"] = telling[telling["problem"] < "p005"]
    lines = found(of[states], of[text]).verdict
    assert lines[7] == "States or text? Hidden states minus 3-grams of the text, paired over problems:"
    assert lines[12].startswith(total) and max(map(len, lines)) <= 80
    shown = [[line[45:54].strip() for line in part] for part in (lines[:2], lines[8:10])]
    assert signs is None or shown == [signs, words]


@pytest.mark.parametrize(*cases("diagnosis", "test_a_word_needs_the_sign_and_the_difference"))
def test_a_word_needs_the_sign_and_the_difference(states, text, less, word):
    made = [Estimate(None if low is None else 0.0, low, high, 20, 99) for low, high in (states, text, less)]
    assert compared(*made, -1) == word
    mirrored = [Estimate(0.0, *(None if end is None else -end for end in (e.high, e.low)), 20, 99) for e in made]
    assert compared(*mirrored, 1) == word


def test_the_results_have_each_number_of_the_text_and_its_difference(tables):
    telling, blind = tables
    made = found(telling, blind)
    alone = find(blind, spans_of(blind), SETTINGS, resamples=60).results  # as if the text were the states
    mine = {row["what"]: row for row in find(telling, spans_of(telling), SETTINGS, resamples=60).results["numbers"]}
    theirs = {row["what"]: row for row in alone["numbers"]}
    rows = {row["what"]: dict(row) for row in made.results["text_numbers"]}
    assert len(rows) > 40 and "Contrast of omega: wrong over right rollouts" in rows
    for what, row in rows.items():
        less = row.pop("difference")
        assert row == theirs[what]
        if row["value"] is not None and mine[what]["value"] is not None:
            assert less["value"] == pytest.approx(mine[what]["value"] - row["value"], abs=1e-12)
    assert made.results["analyses"]["text"]["within"] == alone["analyses"]["within"]
    assert [row["what"] for row in made.results["numbers"]] == list(mine)
    table = next(table for table in made.tables if table.title.startswith("States or text?"))
    assert table.header == ("What", "Hidden states", "3-grams of the text", "Difference")
    row = next(row for row in table.rows if row[0] == "rho of distance and accuracy, all prefixes")
    assert row[2].startswith(f"{rows[row[0]]['value']:.3f} (")
    assert "No text control" not in " ".join(made.notes)


def test_a_difference_is_paired_and_its_interval_that_of_loops():
    rng = np.random.default_rng(5)
    level = rng.normal(0, 1, 30)  # of a problem, in both
    first, second = level + 0.2 + rng.normal(0, 0.1, 30), level + rng.normal(0, 0.1, 30)

    def mean_of(values):
        return Quantity("mean", lambda weights: weights @ values / weights.sum(), np.ones(30))

    own, other = (Bootstrap(200, 4).estimates([mean_of(values)]).mean for values in (first, second))
    drawn = []
    for times in Bootstrap(200, 4).draws(30):
        sums = [sum(t * v for t, v in zip(times, values, strict=True)) for values in (first, second)]
        drawn.append((sums[0] - sums[1]) / 30)
    less = difference(own, other)
    assert less.value == pytest.approx(first.mean() - second.mean(), rel=1e-9)
    assert (less.low, less.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=1e-12)
    assert less.low > 0 and own.low < other.high  # two separate intervals would not show it
    assert "draws" not in plain(less)
    undefined = replace(other, value=None, low=None, high=None, warning="not defined")
    assert (difference(own, undefined).value, difference(own, undefined).warning) == (None, "not defined")


def test_pictures_over_the_distance_are_drawn_for_the_text_too(tables):
    telling, blind = (of[of["problem"] < "p012"] for of in tables)
    made = found(telling, blind, 20)
    alone = find(blind, spans_of(blind), SETTINGS, 20)
    pictures, theirs = ({picture.name: picture for picture in of.pictures} for of in (made, alone))
    beside = ("accuracy", "auc", "densities", "positions")
    assert set(pictures) == {*theirs, *(f"text_{name}" for name in beside)}
    for name in beside:
        picture = pictures[f"text_{name}"]
        assert (picture.header, picture.rows) == (theirs[name].header, theirs[name].rows) != pictures[name].rows
        assert picture.heading == f"{theirs[name].heading}: 3-grams of the text"
