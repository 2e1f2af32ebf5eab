"""SHEAR's evidence of a group: nearest opposing spans and heatmaps, against float64 distances of all pairs.

Tolerances: 0.05 eps is the contract of the search; 0.01 eps is asked here. Measured on these groups: at most 0.001 eps.
"""

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from test_shear_weights import oracle_bandwidth, oracle_distance, oracle_spans

from openrlhf_shear.config import SearchConfig, ShearConfig
from openrlhf_shear.config.shear import DISTANCES
from openrlhf_shear.credit import heatmaps as heatmaps_module
from openrlhf_shear.credit.checks import CreditRuleError, checked_evidence
from openrlhf_shear.credit.groups import CreditRequest, GroupCollector
from openrlhf_shear.credit.heatmaps import group_evidence, shear_evidence, shown_spans
from openrlhf_shear.credit.rule import Credit, CreditRule, GroupEvidence, RolloutGroup, SpanEvidence
from openrlhf_shear.credit.rules.shear import ShearRule
from openrlhf_shear.credit.rules.uniform import UniformRule
from openrlhf_shear.credit.shear import shear_weights

EPSILON = 0.05
ACCURACY = 0.01 * EPSILON
SMALL = {"window": 6, "stride": 3, "epsilon_rel": EPSILON}
MIXED = [False, True, False, True, True]
LENGTHS = (10, 7, 4, 9, 13)
GROUP = RolloutGroup(0, (1.0,) * 5, (True,) * 5, LENGTHS)


def states(lengths=LENGTHS, d=5, seed=3):
    """Around a few centres, some far and some near, so that nearest spans are clear."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(6, d, generator=generator)
    return [
        0.3 * torch.randn(t, d, generator=generator) + centres[torch.randint(6, (t,), generator=generator)]
        for t in lengths
    ]


def oracle(hidden, measured, distance="sinkhorn", shown=None):
    """Pairs of spans: (i, j) -> (K_i, K_j) float64 in units of nbar, for all measured rollouts i != j; `shown`: only
    these spans of each rollout."""
    of_measured = tuple(tuple(map(tuple, hidden[i].tolist())) for i in measured)
    return _oracle(of_measured, tuple(measured), distance, shown and tuple(map(tuple, shown)))


@functools.cache
def _oracle(hidden, measured, distance, shown):
    nbar = np.mean([math.sqrt(sum(x * x for x in token)) for h in hidden for token in h])
    scaled = {i: np.array(h) / nbar for i, h in zip(measured, hidden, strict=True)}
    sigma = oracle_bandwidth(scaled.values())
    spans = {i: [h[a:b] for a, b in oracle_spans(len(h), 6, 3)] for i, h in scaled.items()}
    if shown is not None:
        spans = {i: [of_rollout[k] for k in shown[i]] for i, of_rollout in spans.items()}
    found = {
        (i, j): np.array([[oracle_distance(distance, x, y, EPSILON, sigma) for y in spans[j]] for x in spans[i]])
        for i in measured
        for j in measured
        if i < j
    }
    return found | {(j, i): values.T for (i, j), values in found.items()}


def assert_is_the_oracles(evidence: GroupEvidence, expected, correct, measured):
    for i in measured:
        shown = evidence.rollouts[i]
        opposing = [(j, expected[i, j]) for j in measured if correct[j] != correct[i]]
        for k in range(len(shown.span_starts)):
            value, j, span = min((row[k][span], j, span) for j, row in opposing for span in range(row.shape[1]))
            assert (shown.nearest_sample[k], shown.nearest_span[k]) == (j, span)
            assert shown.span_distances[k].item() == pytest.approx(value, abs=ACCURACY)


def assert_heatmaps(evidence: GroupEvidence, expected, measured):
    """`expected` of the shown spans alone."""
    for i in measured:
        shown = evidence.rollouts[i]
        assert list(shown.heatmaps) == [j for j in measured if j > i]
        for j, values in shown.heatmaps.items():
            assert values.dtype == torch.float32
            assert values.shape == (len(shown.heatmap_spans), len(evidence.rollouts[j].heatmap_spans))
            np.testing.assert_allclose(values.numpy(), expected[i, j], rtol=0, atol=ACCURACY)


@pytest.mark.parametrize("distance", ["sinkhorn", "mmd"])
def test_control_distances_match_the_oracle(distance):
    """Outcomes in a random order are those of exactly one of the orders, and as many rollouts stay correct."""
    hidden, measured = states(), range(5)
    expected = oracle(hidden, measured, distance)
    _, evidence = shear_evidence(hidden, MIXED, ShearConfig(**SMALL, distance=distance), heatmaps=False, controls=True)

    def nearest(i, others):
        return np.min([expected[i, j].min(1) for j in others], axis=0) if others else np.full(len(expected[i, 0]), inf)

    inf, orders = math.inf, []
    for i, shown in enumerate(evidence.rollouts):
        same = nearest(i, [j for j in measured if j != i and MIXED[j] == MIXED[i]])
        np.testing.assert_allclose(shown.controls["same"].numpy(), same, rtol=0, atol=ACCURACY)
    for correct in itertools.combinations(measured, sum(MIXED)):
        sides = [nearest(i, [j for j in measured if (j in correct) != (i in correct)]) for i in measured]
        found = [shown.controls["permuted"].numpy() for shown in evidence.rollouts]
        orders.append(all(np.allclose(a, b, rtol=0, atol=ACCURACY) for a, b in zip(found, sides, strict=True)))
    # mmd's bandwidth follows the sides, so its values in another order are not quite those of the oracle
    assert orders.count(True) == 1 or distance == "mmd"
    norms = [h.double().norm(dim=1) for h in hidden]
    nbar = torch.cat(norms).mean()
    largest = [(n.max() / nbar).item() for n in norms]
    assert [shown.largest_norm for shown in evidence.rollouts] == pytest.approx(largest)


def test_controls_are_infinite_where_there_is_nothing_to_be_near_to():
    hidden, config = states((8, 6, 7)), ShearConfig(**SMALL)
    alone, *two = shear_evidence(hidden, [True, False, False], config, controls=True)[1].rollouts
    assert alone.controls["same"].isinf().all() and all(shown.controls["same"].isfinite().all() for shown in two)
    unmixed = shear_evidence(hidden, [True, True, None], config, controls=True)[1].rollouts
    assert all(values.isinf().all() for shown in unmixed for values in shown.controls.values())
    assert shear_evidence(hidden, [True, False, False], config)[1].rollouts[0].controls == {}


@pytest.mark.parametrize("distance", DISTANCES)
def test_nearest_spans_and_heatmaps_match_the_oracle(distance):
    hidden, measured = states(), range(5)
    result, evidence = shear_evidence(hidden, MIXED, ShearConfig(**SMALL, distance=distance))
    expected = oracle(hidden, measured, distance)
    assert_is_the_oracles(evidence, expected, MIXED, measured)
    assert_heatmaps(evidence, expected, measured)
    weights = shear_weights(hidden, MIXED, ShearConfig(**SMALL, distance=distance)).weights
    assert all(torch.equal(a, b) for a, b in zip(result.weights, weights, strict=True))


def test_evidence_without_heatmaps_is_the_oracle_s():
    hidden = states()
    _, evidence = shear_evidence(hidden, MIXED, ShearConfig(**SMALL), heatmaps=False)
    assert_is_the_oracles(evidence, oracle(hidden, range(5)), MIXED, range(5))
    assert all(shown.heatmaps == {} for shown in evidence.rollouts)


@pytest.mark.parametrize("most", [2, 3])
def test_long_rollouts_show_some_of_their_spans(most, monkeypatch):
    """Shown spans of which some don't overlap: the tokens between them are left out."""
    monkeypatch.setattr(heatmaps_module, "SHOWN_SPANS", most)
    hidden, config = states((40, 31, 8, 25, 40)), ShearConfig(**SMALL)
    evidence = group_evidence(hidden, shear_weights(hidden, MIXED, config), config, SearchConfig())
    shown = {2: [[0, 12], [0, 9], [0, 1], [0, 7], [0, 12]], 3: [[0, 6, 12], [0, 4, 9], [0, 1], [0, 3, 7], [0, 6, 12]]}
    assert [spans.heatmap_spans.tolist() for spans in evidence.rollouts] == shown[most]
    assert_heatmaps(evidence, oracle(hidden, range(5), shown=shown[most]), range(5))


def test_shown_spans_are_even_and_have_both_ends():
    assert shown_spans(0).tolist() == [] and shown_spans(32).tolist() == list(range(32))
    for count in range(33, 300):
        shown = shown_spans(count)
        assert len(shown) == 32 and shown[0] == 0 and shown[-1] == count - 1
        steps = shown.diff()
        assert steps.min() >= 1 and steps.max() - steps.min() <= 1


@pytest.mark.parametrize("bad", ["nan", "unknown", "empty"])
@pytest.mark.parametrize("distance", ["sinkhorn", "mmd"])
def test_rollouts_that_were_not_measured_have_no_evidence(bad, distance):
    hidden, correct = states(), list(MIXED)
    if bad == "nan":
        hidden[2][1, 1] = math.nan
    elif bad == "unknown":
        correct[2] = None
    else:
        hidden[2] = hidden[2][:0]
    _, evidence = shear_evidence(hidden, correct, ShearConfig(**SMALL, distance=distance))
    measured = [0, 1, 3, 4]
    expected = oracle(hidden, measured, distance)
    assert_is_the_oracles(evidence, expected, correct, measured)
    assert_heatmaps(evidence, expected, measured)
    left_out = evidence.rollouts[2]
    spans = 0 if bad == "empty" else 1
    assert left_out.nearest_sample.tolist() == left_out.nearest_span.tolist() == [-1] * spans
    assert left_out.span_distances.tolist() == [math.inf] * spans and left_out.heatmaps == {}
    assert left_out.heatmap_spans.tolist() == list(range(spans))


@pytest.mark.parametrize("distance", ["sinkhorn", "mmd"])
def test_a_group_without_opposition_still_has_heatmaps(distance):
    hidden = states()
    _, evidence = shear_evidence(hidden, [True] * 5, ShearConfig(**SMALL, distance=distance))
    assert_heatmaps(evidence, oracle(hidden, range(5), distance), range(5))
    for shown in evidence.rollouts:
        assert (shown.nearest_sample == -1).all() and (shown.nearest_span == -1).all()
        assert (shown.span_distances == math.inf).all()
    _, alone = shear_evidence(hidden[:1], [True], ShearConfig(**SMALL))
    assert alone.rollouts[0].heatmaps == {}


def test_states_of_zero_have_no_heatmaps():
    _, evidence = shear_evidence([torch.zeros(8, 4), torch.zeros(3, 4)], [True, False], ShearConfig(**SMALL))
    assert all(shown.heatmaps == {} and (shown.nearest_sample == -1).all() for shown in evidence.rollouts)


def collected(rule: CreditRule, evidence: bool):
    """A group of five rollouts, in two micro-batches."""
    collector, hidden = GroupCollector(rule), states()
    for part in (slice(0, 2), slice(2, 5)):
        members, correct = tuple(range(5))[part], tuple(MIXED[part])
        rewards = tuple(map(float, correct))
        request = CreditRequest(members, (0,) * len(members), rewards, correct, group_size=5, evidence=evidence)
        tensors = {"hidden_states": hidden[part]} if rule.needs else {}
        collector.add(request, [len(h) for h in hidden[part]], tensors)
    (credit,) = collector.take()
    return credit


def test_a_collector_asks_for_evidence_where_it_is_wanted():
    config = ShearConfig(**SMALL)
    without, found = (collected(ShearRule(config), evidence) for evidence in (False, True))
    assert without.evidence is None and without.evidence_seconds == 0
    assert found.evidence_seconds > 0 and found.seconds > 0
    _, expected = shear_evidence(states(), MIXED, config)
    for mine, other in zip(found.evidence.rollouts, expected.rollouts, strict=True):
        assert torch.equal(mine.nearest_sample, other.nearest_sample) and mine.heatmaps.keys() == other.heatmaps.keys()
        assert all(torch.equal(values, other.heatmaps[j]) for j, values in mine.heatmaps.items())
    assert all(map(torch.equal, found.weights, without.weights))


class Shows(UniformRule):
    """A user's rule, with what its `evidence` gives."""

    name = "shows"

    def __init__(self, answer=None):
        self.answer = answer

    def evidence(self, group, credit):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


SPANS = SpanEvidence(*[torch.zeros(1, dtype=torch.int64)] * 5)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (ZeroDivisionError("no spans"), "evidence.. raised ZeroDivisionError: no spans"),
        ([1], "must return a GroupEvidence: got list"),
        (GroupEvidence((SPANS,)), "one entry a rollout, 5: got 1"),
    ],
)
def test_evidence_that_is_none_is_a_clear_error(answer, message):
    with pytest.raises(CreditRuleError, match=rf"credit rule shows \(.*:Shows\), group 0: .*{message}"):
        checked_evidence(Shows(answer), GROUP, Credit())


def test_evidence_that_fails_costs_the_evidence_and_not_the_step(caplog):
    credit = collected(Shows(ZeroDivisionError("no spans")), evidence=True)
    assert credit.evidence is None and [len(w) for w in credit.weights] == list(LENGTHS)
    assert "no evidence is dumped" in caplog.text and "no spans" in caplog.text
