"""The rows of a step: built from experiences as the update gets them, and written, or not, without ending the run."""

import math
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from transformers import AutoTokenizer

from openrlhf_shear.config import CreditSpec, ShearConfig
from openrlhf_shear.credit.apply import TokenCredit
from openrlhf_shear.credit.groups import CreditRequest, GroupCollector
from openrlhf_shear.credit.heatmaps import SHOWN_SPANS, shear_evidence
from openrlhf_shear.credit.rule import SpanEvidence
from openrlhf_shear.credit.rules.shear import ShearRule
from openrlhf_shear.credit.rules.uniform import UniformRule
from openrlhf_shear.rollouts.columns import StepRollouts, rollout_rows, span_columns
from openrlhf_shear.rollouts.record import read_rollouts
from openrlhf_shear.tasks.arithmetic import arithmetic
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR
from openrlhf_shear.train.run import dump as rollout_dump
from openrlhf_shear.train.run.dump import RolloutDump

PROMPT = "37a+45bx7c-12d+08ex3f-31g+77="
RIGHT = "a37+45=82;b7x82=74;c-12+74=62;d62+08=70;e70x3=10;f-31+10=79;g79+77=56;#56"
RESPONSES = [RIGHT, "a37+45=82;b7x82=84;#84", RIGHT[:30], "a37+45=83;#83"]  # errors: none, 16, cut off, 8
FIRST_ERRORS = [None, 16, 30, 8]
REWARDS = [1.0, 0.0, 0.0, math.nan]
SIZE = 4
CONFIG = ShearConfig(window=8, stride=3)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(POLICY_DIR)


def single(tokenizer, i: int, gap: int = 0) -> Experience:
    """Rollout i of one group: with `gap`, tokens of an environment in the middle of its response."""
    prompt = tokenizer(PROMPT, add_special_tokens=False)["input_ids"]
    response = [*tokenizer(RESPONSES[i], add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    half = len(response) // 2
    sequence = [*prompt, *response[:half], *response[-1:] * gap, *response[half:]]
    mask = [0] * (len(prompt) - 1) + [1] * half + [0] * gap + [1] * (len(response) - half)
    failed = math.isnan(REWARDS[i])
    return Experience(
        sequences=torch.tensor([sequence]),
        attention_mask=torch.ones(1, len(sequence), dtype=torch.long),
        action_mask=torch.tensor([mask]),
        advantages=torch.tensor([[0.25 * (i + 1) * at for at in mask]]),
        truncated=torch.tensor([i == 2]),
        index=[i],
        prompts=[PROMPT],
        labels=["56"],
        info={"reward_failed": torch.tensor([float(failed)])},
    )


def test_the_nearest_rollout_has_its_number_in_the_step():
    spans = torch.tensor([0, 3, 6])
    nearest = SpanEvidence(spans, torch.tensor([1.0, 2.0, math.inf]), torch.tensor([2, 0, -1]), spans - 1, spans[:0])
    assert span_columns(nearest, samples=[7, 5, 3])["nearest_sample"] == [3, 7, -1]


def step(tokenizer, rule=None, gap: int = 0) -> StepRollouts:
    """One group of four, in two batches that are out of order; advantage 0.5, so that weights are 0.5 (i + 1)."""
    rule = rule or UniformRule()
    singles = [single(tokenizer, i, gap if i == 1 else 0) for i in range(SIZE)]
    batches = [
        Experience.concat_experiences([singles[i] for i in order], tokenizer.pad_token_id) for order in ((2, 0), (3, 1))
    ]
    lengths = [int(s.action_mask.sum()) for s in singles]
    collector = GroupCollector(rule)
    correct = (True, False, False, None)
    request = CreditRequest((0, 1, 2, 3), (0,) * 4, tuple(REWARDS), correct, SIZE, evidence=True)
    collector.add(request, lengths, {"hidden_states": states(lengths)} if rule.needs else {})
    base = [torch.full((n,), 0.5) for n in lengths]
    weights = [torch.full((n,), 0.5 * (i + 1)) for i, n in enumerate(lengths)]
    tokens = {i: TokenCredit(base[i], base[i] * weights[i], weights[i]) for i in range(SIZE)}
    return StepRollouts(batches, collector.take(), tokens, evidence_seconds=9.0)


def states(lengths):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 6, generator=generator) for n in lengths]


@pytest.mark.parametrize("gap", [0, 5])
def test_rows_are_the_rollouts_in_order(tokenizer, gap):
    rows = list(rollout_rows(step(tokenizer, gap=gap), tokenizer, SIZE, arithmetic.first_error))
    assert [(row.group, row.sample) for row in rows] == [("0", i) for i in range(SIZE)]
    for i, row in enumerate(rows):
        assert row.response == RESPONSES[i] + tokenizer.eos_token and row.tokens[:-1] == list(RESPONSES[i])
        assert row.token_ids[-1] == tokenizer.eos_token_id and (row.prompt, row.label) == (PROMPT, "56")
        assert row.weights == [0.5 * (i + 1)] * len(row.tokens)
        assert row.token_advantages == [0.25 * (i + 1)] * len(row.tokens), "those of this rollout, not another row's"
        assert row.span_starts is row.heatmaps is None
    assert [row.correct for row in rows] == [True, False, False, None]
    assert [row.reward for row in rows] == [1.0, 0.0, 0.0, None]
    assert [row.advantage for row in rows] == [0.5, 0.5, 0.5, None]
    assert [row.truncated for row in rows] == [False, False, True, False]
    assert [row.first_error for row in rows] == FIRST_ERRORS
    assert [row.answer_start for row in rows][:2] == [RIGHT.index("#"), RESPONSES[1].index("#")]


def test_only_a_named_task_s_errors_are_known(tokenizer):
    asked = []
    rows = list(rollout_rows(step(tokenizer), tokenizer, SIZE, lambda prompt, text: asked.append((prompt, text)) or 2))
    assert sorted(asked) == sorted((PROMPT, text + tokenizer.eos_token) for text in RESPONSES)
    assert [row.first_error for row in rows] == [2] * SIZE
    assert [row.first_error for row in rollout_rows(step(tokenizer), tokenizer, SIZE)] == [None] * SIZE


def test_rows_have_the_evidence_of_shear(tokenizer):
    rows = list(rollout_rows(step(tokenizer, ShearRule(CONFIG)), tokenizer, SIZE))
    lengths = [len(row.tokens) for row in rows]
    _, evidence = shear_evidence(states(lengths), [True, False, False, None], CONFIG)
    for row, expected in zip(rows, evidence.rollouts, strict=True):
        assert row.span_starts == expected.span_starts.tolist()
        assert row.span_distances == expected.span_distances.tolist()
        assert row.nearest_sample == expected.nearest_sample.tolist()
        assert row.nearest_span == expected.nearest_span.tolist()
        assert row.heatmap_spans == expected.heatmap_spans.tolist() and len(row.heatmap_spans) <= SHOWN_SPANS
        assert {heatmap.other: heatmap.values for heatmap in row.heatmaps} == {
            j: values.flatten().tolist() for j, values in expected.heatmaps.items()
        }
    assert [len(row.heatmaps) for row in rows] == [2, 1, 0, 0]


def test_labels_and_prompts_that_a_file_cannot_hold(tokenizer):
    made = step(tokenizer)
    made.experiences[0].labels = ["x" * 5000, None]
    made.experiences[0].prompts = ["half a character \ud83d", PROMPT]
    rows = list(rollout_rows(made, tokenizer, SIZE, arithmetic.first_error))
    assert rows[0].label == "" and rows[2].label == "x" * 2000 + " ..."
    assert rows[2].prompt == "half a character ?" and rows[2].first_error is None


def arguments(folder, every=20, estimator="shear", rewards=arithmetic.__file__):
    return SimpleNamespace(
        reward=SimpleNamespace(remote_url=[rewards]),
        dump_rollouts_every=every,
        ckpt=SimpleNamespace(path=str(folder)),
        rollout=SimpleNamespace(n_samples_per_prompt=SIZE),
        actor=SimpleNamespace(model_name_or_path="a/model"),
        credit=CreditSpec(estimator, CONFIG if estimator == "shear" else None),
    )


def written(dump: RolloutDump, number: int, rollouts: StepRollouts) -> dict[str, float]:
    """Write a step's rollouts to the end; return the metrics."""
    metrics = dump.write(number, rollouts)
    dump.wait()
    return metrics


def test_the_first_step_and_every_nth_are_due(tmp_path):
    dump = RolloutDump(arguments(tmp_path, 20), "shear", None)
    assert [n for n in range(1, 81) if dump.due(n)] == [1, 20, 40, 60, 80]
    assert not any(RolloutDump(arguments(tmp_path, 0), "shear", None).due(n) for n in range(1, 50))


def test_a_step_is_written_and_written_again(tmp_path, tokenizer):
    dump = RolloutDump(arguments(tmp_path), "shear", tokenizer)
    made = step(tokenizer, ShearRule(CONFIG))
    for _ in range(2):
        metrics = written(dump, 20, made)
    assert list(metrics) == ["shear/dump_seconds"] and 9 < metrics["shear/dump_seconds"] < 20
    assert [path.name for path in (tmp_path / "rollouts").iterdir()] == ["step000020.parquet"]
    rows, settings = read_rollouts(tmp_path / "rollouts" / "step000020.parquet")
    assert rows[0].span_starts[:2] == [0, 3] and len(rows) == SIZE
    assert [row.first_error for row in rows] == FIRST_ERRORS, "the dump names the task"
    assert (settings["rule"], settings["model"], settings["step"]) == ("shear", "a/model", 20)
    assert (settings["window"], settings["stride"], settings["samples_per_prompt"]) == (8, 3, SIZE)


def test_evidence_that_does_not_fit_its_rollouts_costs_the_file_and_not_the_run(tmp_path, tokenizer, caplog):
    dump, made = RolloutDump(arguments(tmp_path), "mine", tokenizer), step(tokenizer, ShearRule(CONFIG))
    short = [replace(group, evidence=replace(group.evidence, rollouts=("none",) * SIZE)) for group in made.groups]
    assert list(written(dump, 20, replace(made, groups=short))) == ["mine/dump_seconds"]
    assert not list((tmp_path / "rollouts").iterdir())
    assert "the rollouts of step 20 could not be written" in caplog.text and "training goes on" in caplog.text


@pytest.mark.parametrize("rewards", ["math", "http://localhost:5000", "tasks/arithmetic/arithmetic.py"])
def test_prompts_of_another_task_are_not_read_as_arithmetic(tmp_path, tokenizer, monkeypatch, rewards):
    monkeypatch.setattr(arithmetic, "first_error", lambda *_: pytest.fail("the toy task parses every prompt"))
    written(RolloutDump(arguments(tmp_path, rewards=rewards), "shear", tokenizer), 1, step(tokenizer))
    rows, _ = read_rollouts(tmp_path / "rollouts" / "step000001.parquet")
    assert [row.first_error for row in rows] == [None] * SIZE


def test_rules_without_weights_or_a_window(tmp_path, tokenizer):
    made = step(tokenizer)
    made = replace(made, tokens={i: replace(credit, weights=None) for i, credit in made.tokens.items()})
    written(RolloutDump(arguments(tmp_path, estimator="uniform"), "uniform", tokenizer), 1, made)
    rows, settings = read_rollouts(tmp_path / "rollouts" / "step000001.parquet")
    assert settings["rule"] == settings["estimator"] == "uniform" and "window" not in settings
    assert all(row.weights is None and row.token_advantages for row in rows)


@pytest.mark.parametrize("error", ["a file in the way", "no space left"])
def test_a_disk_that_takes_no_file_does_not_end_the_run(tmp_path, tokenizer, monkeypatch, error):
    said = []
    monkeypatch.setattr(rollout_dump.logger, "warning", said.append)
    if error == "a file in the way":
        (tmp_path / "rollouts").write_text("")
    else:
        full = Mock(side_effect=OSError(28, "No space left on device"))
        monkeypatch.setattr("pyarrow.parquet.ParquetWriter", full)
    metrics = written(RolloutDump(arguments(tmp_path), "shear", tokenizer), 20, step(tokenizer))
    assert "shear/dump_seconds" in metrics
    (line,) = said
    assert f"{tmp_path}/rollouts/step000020.parquet" in line and "training goes on" in line
    assert not list(tmp_path.rglob("*.tmp"))
