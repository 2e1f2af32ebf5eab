"""Code shared by the integrations, without their packages: groups cut between processes, versions, refusals."""

import re
import threading
from importlib import metadata

import pytest
import torch
from lab_cases import Hand

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.config.spec import OutcomeConfig
from openrlhf_shear.credit import Credit, CreditRule, shear_weights
from openrlhf_shear.credit.checks import CreditRuleError
from openrlhf_shear.integrations.rows import (
    Row,
    credited_groups,
    failed_of,
    of_responses,
    rows_of_process,
    rule_of,
)
from openrlhf_shear.train import upstream

CONFIG = ShearConfig(window=4, stride=2)


def rows_of(groups: int = 3, size: int = 4) -> list[Row]:
    """Rollouts with random states; one without a reward, one without a token."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for i in range(groups * size):
        states = torch.randn(0 if i == 5 else 6 + i, 8, generator=generator)
        failed = i == 2
        reward = float("nan") if failed else float(i % 2)
        rows.append(
            Row(
                i, f"prompt {i // size}", reward, None if failed else i % 2 == 1, len(states), {"hidden_states": states}
            )
        )
    return rows


def on_processes(parts: list[list[Row]], rule: CreditRule) -> list[tuple]:
    """What `credited_groups` gives each of several threads that gather as processes do."""
    lists, results, barrier = [None] * len(parts), [None] * len(parts), threading.Barrier(len(parts), timeout=60)

    def run(rank: int) -> None:
        def gather(values: list) -> list:
            lists[rank] = list(values)
            barrier.wait()
            joined = [value for part in lists for value in part]
            barrier.wait()
            return joined

        results[rank] = credited_groups(rule, parts[rank], 7, gather)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_rows_are_numbered_over_all_processes():
    mask, nan = torch.tensor([[True, True], [True, False], [False, False]]), float("nan")
    found = rows_of_process(4, "aab", [0.5, nan, 0.2], 0.5, mask, [{"x": 1}, {"x": 2}, {}])
    assert found[:1] + found[2:] == [Row(4, "a", 0.5, True, 2, {"x": 1}), Row(6, "b", 0.2, False, 0, {})]
    assert (found[1].rollout, found[1].group, found[1].correct, found[1].length) == (5, "a", None, 1)


@pytest.mark.parametrize("cuts", [(), (4, 8), (4,), (2,), (12,), (1, 3, 6, 11), tuple(range(1, 12))])
def test_groups_weigh_the_same_however_their_rows_lie_on_processes(cuts):
    rows, rule = rows_of(), rule_of("shear/window=4/stride=2", "here", "TRL")
    expected = {
        i: weight
        for at in range(0, len(rows), 4)
        for i, weight in enumerate(
            shear_weights(
                [row.tensors["hidden_states"] for row in rows[at : at + 4]],
                [row.correct for row in rows[at : at + 4]],
                CONFIG,
            ).weights,
            at,
        )
    }
    ends = (*cuts, len(rows))
    parts = [rows[begin:end] for begin, end in zip((0, *cuts), ends, strict=True)]
    results = on_processes(parts, rule)
    for groups, metrics in results:
        assert sorted(i for group in groups for i in group.rollouts) == list(range(12))
        found = {i: w for group in groups for i, w in zip(group.rollouts, group.weights, strict=True)}
        assert all(torch.equal(found[i], expected[i]) for i in expected)
        assert failed_of(groups) == {2} and metrics == results[0][1]
        assert metrics["shear/mixed_groups"] == 1.0


def test_rows_of_a_group_need_no_order():
    rows = rows_of()
    shuffled = [rows[i] for i in (7, 0, 11, 3, 5, 1, 9, 2, 4, 10, 6, 8)]
    rule = rule_of("shear/window=4/stride=2", "here", "TRL")
    (plain, _), (mixed, _) = credited_groups(rule, rows), credited_groups(rule, shuffled)
    by_rollouts = {group.rollouts: group for group in mixed}
    for group in plain:
        assert all(map(torch.equal, group.weights, by_rollouts[group.rollouts].weights))


NEEDS = {"log_probs", "token_ids"}


def test_a_rule_sees_what_it_needs_and_where_it_stands():
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]]).bool()
    ids, log_probs = torch.arange(6).view(2, 3), -torch.arange(6).view(2, 3).bfloat16()
    tensors = of_responses(NEEDS, mask, None, ids, {}, log_probs=log_probs)
    rule = Hand(needs=NEEDS)
    credited_groups(rule, [Row(i, "p", 1.0 - i, i == 0, 2, tensors[i]) for i in range(2)], step=3)
    (group,) = rule.seen
    assert group.step == 3 and group.rewards == (1.0, 0.0) and group.correct == (True, False)
    assert [row.tolist() for row in group.token_ids] == [[0, 1], [4, 5]] and group.hidden_states is None
    assert [(row.tolist(), row.dtype) for row in group.log_probs] == [
        ([0.0, -1.0], torch.float32),
        ([-4.0, -5.0], torch.float32),
    ]


def test_what_counts_as_correct():
    """By the scores, or by another reward; a rollout without either has no outcome."""
    scores, mask = [0.5, 0.4, float("nan"), 1.5], torch.ones(4, 2)
    rows = rows_of_process(0, "aabb", scores, 0.5, mask, [{}] * 4)
    assert [row.correct for row in rows] == [True, False, None, True]
    rows = rows_of_process(0, "aabb", scores, 0.5, mask, [{}] * 4, [0.0, 1.0, 1.0, float("nan")])
    assert [row.correct for row in rows] == [False, True, None, None]
    assert [row.reward for row in rows[:2]] == [0.5, 0.4]
    with pytest.raises(ValueError, match=r"credit\.correct_threshold must be finite"):
        OutcomeConfig(float("inf"))


def test_a_rule_is_named_by_the_one_grammar():
    rule = rule_of("shear/window=7/stride=3/backend=torch", "here", "TRL")
    assert (rule.config.window, rule.config.stride, rule.search.backend) == (7, 3, "torch")
    assert rule_of(rule, "here", "TRL") is rule
    for name, said in (
        ("sheer", "did you mean shear"),
        ("shear/windw=1", "no knob windw"),
        ("pure", "here: pure needs"),
    ):
        with pytest.raises(ValueError, match=said):
            rule_of(name, "here", "TRL")


def test_a_rule_that_fails_is_named():
    with pytest.raises(CreditRuleError, match=r"Hand.*group 0: 1 rollouts need as many weights: got 2"):
        rule = Hand(needs=NEEDS)
        rule.credit = lambda group: Credit([torch.ones(1), torch.ones(1)])
        credited_groups(rule, [Row(0, "p", 1.0, True, 1, {"log_probs": torch.zeros(1), "token_ids": torch.zeros(1)})])


# ── Versions ──


@pytest.mark.parametrize(
    ("package", "extra", "install"),
    [("OpenRLHF", "cluster", "use scripts/install.sh"), ("trl", "trl", "use: pip install '.[trl]'")],
)
def test_versions(monkeypatch, package, extra, install):
    installed = {}
    monkeypatch.setattr(metadata, "version", lambda name: installed.get(name) or metadata.distribution("absent"))
    said = re.escape(f"needs the extra [{extra}]: {package} is not installed; {install}")
    with pytest.raises(ModuleNotFoundError, match=said) as error:
        upstream.require(package, "1.0", extra, install)
    assert "\n" not in str(error.value)
    installed[package] = "1.1"
    with pytest.raises(
        RuntimeError, match=f"{package} must be 1.0, .*got 1.1; use: pip install {package.lower()}==1.0"
    ):
        upstream.require(package, "1.0", extra, install)
    installed[package] = "1.0"
    upstream.require(package, "1.0", extra, install)
    upstream.require(package, "1.9", extra, install, "0.8")  # within the versions that were tried
    with pytest.raises(
        RuntimeError, match=f"{package} must be 1.1 to 1.9, with which openrlhf_shear was tried: got 1.0"
    ):
        upstream.require(package, "1.9", extra, install, "1.1")
    monkeypatch.setenv(upstream.ANY_VERSION, "1")
    upstream.require(package, "1.9", extra, install, "1.1")
