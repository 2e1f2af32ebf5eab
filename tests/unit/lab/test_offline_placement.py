"""Weights on the first wrong step: measures against loops, the model's reading against float64, gate and command."""

import json
import math
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from bos_tokenizers import BOS
from cases import cases
from command_lines import refusal, run_fresh
from lab_cases import Hand
from offline_cases import OTHER, PROBLEM, RESPONSES, as_row, reader, write_model, write_rows
from transformers import AutoModelForCausalLM

from openrlhf_shear.cli.offline import main
from openrlhf_shear.credit import Credit, CreditRule
from openrlhf_shear.data.prompts import PromptFormat
from openrlhf_shear.lab.offline.reading import Reader
from openrlhf_shear.lab.offline.responses import Planted, Response, ResponseGroup, by_problem
from openrlhf_shear.lab.offline.run import ReadGroup, against_same_outcome, compare, gate, traces_of
from openrlhf_shear.lab.offline.steps import StepTrace, lift, lift_differences, same_fraction, step_placement
from openrlhf_shear.lab.variants import parse_rules
from openrlhf_shear.report.bootstrap import Bootstrap

FEW = Bootstrap(20)
SAME = 1e-12  # float64 sums in another order
ROUGH = 0.03  # log-probs of the tiny model in bfloat16 against float32: at most 0.004 measured
READ = 2e-5  # float32 against float64 in the tiny model: at most 2e-6 measured


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def read(model, tmp_path):
    return reader(model, tmp_path / "readings")


def drawn_traces(seed: int) -> list[StepTrace]:
    rng = np.random.default_rng(seed)
    traces = []
    for i in range(40):
        correct, tokens = bool(rng.integers(2)), int(rng.integers(2, 30))
        weights = rng.integers(-1, 6, tokens) / 5 * (rng.random() < 0.9)  # some have no weight at all
        start = end = None
        if rng.random() < (0.2 if correct else 0.8):
            start = int(rng.integers(0, tokens))
            end = int(rng.integers(start, tokens + 1))  # perhaps a step without a token
        traces.append(StepTrace(f"g{i // 5}", correct, weights.tolist(), start, end, i // 5 % 2))
    return traces


def loops(traces: list[StepTrace], times: dict[str, float]) -> dict[str, float]:
    """Every measure by loops over tokens; `times` says how often each problem counts."""
    total = defaultdict(float)

    def add(name, value, by=1.0):
        if value is not None:
            total[name] += by * value
            total[f"n {name}"] += by

    for trace in traces:
        often, w = times[trace.group], [abs(x) for x in trace.weights]
        n = len(w)
        add("wrong" if not trace.correct else "right", sum(w) / n, often)
        if n >= 2:
            first, last = ([x for t, x in enumerate(w) if on(t, n)] for on in (_first, _last))
            add("first", sum(first) / len(first), often)
            add("last", sum(last) / len(last), often)
        if trace.correct or trace.first_error in (None, 0) or trace.error_end <= trace.first_error:
            continue
        a, b, total["responses"] = trace.first_error, trace.error_end, total["responses"] + 1
        top = [t for t, x in enumerate(trace.weights) if x == max(trace.weights)]
        add("share", _part(w, a, b), often)
        add("ranks", _part([sum(y < x for y in w) + sum(y == x for y in w) / 2 + 0.5 for x in w], a, b), often)
        add("chance", (b - a) / n, often)
        add("hit", sum(a <= t < b for t in top) / len(top), often)
        add("auc", _auc(trace.weights, a), often)
        found = defaultdict(list)
        for other in traces:
            same = (other.group, other.member) == (trace.group, trace.member)
            if same and other.correct and other.first_error is None:
                m = len(other.weights)
                places = [
                    t for t in range(m) if (t + 1) * n > a * m and t * n < b * m
                ]  # tokens that the fractions touch
                places = [t for t in places if t >= a * m // n] or [min(a * m // n, m - 1)]
                found["share"].append(_part([abs(x) for x in other.weights], places[0], places[-1] + 1))
                found["chance"].append(len(places) / m)
                if places[0]:
                    found["auc"].append(_auc(other.weights, places[0]))
        if found.get("auc"):
            add("auc_over_control", _auc(trace.weights, a) - sum(found["auc"]) / len(found["auc"]), often)
        for name, values in found.items():
            add(f"{name}_control", sum(values) / len(values), often)
    mean = {name: total[name] / total[f"n {name}"] for name in list(total) if total.get(f"n {name}")}
    made = {name: mean.get(name) for name in ("share", "chance", "hit", "auc", "auc_control", "auc_over_control")}
    made["lift_equal_contrast"] = total["ranks"] / total["chance"]
    made["lift"] = total["share"] / total["chance"]
    made["lift_control"] = total["share_control"] / total["chance_control"]
    made["last_over_first"] = mean["last"] / mean["first"]
    made["wrong_over_right"] = mean["wrong"] / mean["right"]
    return made | {"responses": total["responses"]}


def _first(t, n):
    return t + 0.5 <= n / 4


def _last(t, n):
    return t + 0.5 >= 3 * n / 4


def _part(w, a, b):
    return sum(w[a:b]) / sum(w) if sum(w) else 0.0


def _auc(w, split):
    pairs = [(x > y) + (x == y) / 2 for x in w[split:] for y in w[:split]]
    return sum(pairs) / len(pairs)


@pytest.mark.parametrize("seed", range(4))
def test_measures_and_intervals_against_loops(seed):
    traces = drawn_traces(seed)
    found = step_placement(traces, FEW)
    groups = list(dict.fromkeys(trace.group for trace in traces))
    expected = loops(traces, dict.fromkeys(groups, 1.0))
    for name, value in expected.items():
        got = found[name] if name == "responses" else found[name].value
        assert got == pytest.approx(value, abs=SAME), name
    wrong = [t for t in traces if not t.correct and t.first_error and t.error_end > t.first_error]
    measured = list(dict.fromkeys(trace.group for trace in wrong))
    drawn = []
    for weights in FEW.draws(len(measured)):
        times = defaultdict(float, zip(measured, weights, strict=True))
        drawn.append(loops([t for t in traces if t.group in measured], times)["lift"])
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert (found.lift.low, found.lift.high) == pytest.approx((low, high), abs=SAME)
    assert lift(traces, FEW) == found.lift


def test_uniform_weights_have_lift_one_and_differences_are_paired():
    traces = drawn_traces(7)
    uniform = [StepTrace(t.group, t.correct, [0.3] * len(t.weights), t.first_error, t.error_end) for t in traces]
    placed = step_placement(uniform, FEW)
    assert placed.lift.shown == pytest.approx((1, 1, 1)) and placed.auc.value == 0.5
    assert placed.hit.value == pytest.approx(placed.chance.value)
    ones = placed.last_over_first, placed.wrong_over_right, placed.lift_control
    assert [each.value for each in ones] == pytest.approx([1, 1, 1])
    over = lift_differences({"a": traces, "b": uniform, "c": traces}, FEW)
    own = lift(traces, FEW)
    assert over["a"]["b"].shown == pytest.approx([end - 1 for end in own.shown])
    assert over["b"]["a"].value == pytest.approx(-over["a"]["b"].value)
    assert over["a"]["c"].shown == (0, 0, 0)


def test_nothing_to_measure_gives_no_number():
    empty = step_placement([], FEW)
    assert empty.lift.value is empty.auc.value is empty.last_over_first.value is None and empty.responses == 0
    assert same_fraction(range(9, 10), 10, 3) == range(2, 3)


def test_readings_against_float64(model, read):
    """Token by token, from a model in float64 that reads one response at a time, without padding."""
    group = by_problem(RESPONSES)[0].responses
    exact = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    for response, found in zip(group, read.read(group), strict=True):
        prompt = read.tokenizer(f"[user]{PROBLEM}[assistant]", add_special_tokens=False)["input_ids"]
        ids = read.tokenizer(response.text, add_special_tokens=False)["input_ids"]
        assert BOS not in read.tokenizer.decode(prompt) and found.token_ids.tolist() == ids
        with torch.no_grad():
            out = exact(torch.tensor([prompt + ids]), output_hidden_states=True)
        for t, token in enumerate(ids):
            at = len(prompt) + t
            odds = out.logits[0, at - 1].tolist()
            total = math.log(sum(math.exp(x) for x in odds))
            assert found.log_probs[t].item() == pytest.approx(odds[token] - total, abs=READ)
            entropy = -sum(math.exp(x - total) * (x - total) for x in odds)
            assert found.entropies[t].item() == pytest.approx(entropy, abs=READ)
            assert found.states[t].tolist() == pytest.approx(out.hidden_states[-1][0, at].tolist(), abs=READ)
        starts = [found.step(k).start for k in range(len(response.steps))]
        assert starts == response.step_starts and found.step(len(starts) - 1).stop == len(ids)  # a token a byte


def test_readings_are_kept_whole(model, tmp_path, monkeypatch):
    group = by_problem(RESPONSES)[0].responses
    first, again = (reader(model, tmp_path / "kept", batch_size=3) for _ in range(2))
    computed = first.read(group)
    assert len(list((tmp_path / "kept").iterdir())) == 2
    monkeypatch.setattr(again, "_pass", None)  # nothing is computed
    for a, b in zip(computed, again.read(group), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(vars(a).values(), vars(b).values(), strict=True))
    with pytest.raises(TypeError):
        again.read(group[:1])  # another pass has other readings
    assert len({each._identity for each in (first, reader(model, tmp_path, 3), reader(model, tmp_path, 2))}) == 2


def test_bfloat16_is_kept(model, tmp_path):
    group = by_problem(RESPONSES)[1].responses
    half = Reader.load(str(model), PromptFormat(chat=True), "bfloat16", "cpu", False, tmp_path / "half", 4)
    for a, b in zip(reader(model, tmp_path / "whole").read(group), half.read(group), strict=True):
        assert b.states.dtype is torch.bfloat16 and b.log_probs.dtype is b.entropies.dtype is torch.float32
        assert b.log_probs.tolist() == pytest.approx(a.log_probs.tolist(), abs=ROUGH)


def test_what_the_model_cannot_read_is_refused(model, read, tmp_path):
    with pytest.raises(ValueError, match=r"has 6[0-9][0-9] tokens, and the model reads 512; leave it out") as error:
        read.read([Response(PROBLEM, ("x" * 600,), True, None)])
    assert "\n" not in str(error.value)
    other = write_model(tmp_path / "other", chat=None)
    with pytest.raises(ValueError, match="no chat template; use --prompt-format plain"):
        reader(other, tmp_path)


class Nines(CreditRule):
    """Puts the weight of wrong responses on the tokens "9"."""

    name, needs = "nines", frozenset({"token_texts"})

    def credit(self, group):
        weights = [torch.tensor([float(token == "9") for token in texts]) for texts in group.token_texts]
        return Credit([torch.ones(len(w)) if c else w for w, c in zip(weights, group.correct, strict=True)])


def test_the_gate_is_the_lift_on_the_changed_step(read):
    steps = ("3 and 4.", "3 + 4 = 7", "so 7")
    others = Response(PROBLEM, ("7",), True, None), Response(PROBLEM, ("so 999", "no 9", "no"), False, 1)
    group = ResponseGroup(5, (Response(PROBLEM, steps, True, -1), *others))
    pair = Planted(group, 0, Response(PROBLEM, (steps[0], "3 + 4 = 9", "so 7"), False, 1))
    uniform, nines = parse_rules("uniform,my:Nines")
    control = parse_rules("my:Nines/shuffled")[0]
    rules = {uniform: Hand(), nines: Nines(), control: Nines()}
    found = gate(rules, [pair, pair], read, 0, FEW)
    tokens, of_step = len("\n\n".join(steps)), len("3 + 4 = 7\n\n")
    assert list(found.rules) == ["uniform", "my:Nines"]
    assert (found.passed, found.by, found.needed) == (True, "my:Nines", 1.5)
    assert found.rules["my:Nines"]["responses"] == 2, "one a pair; the response that a human marked does not count"
    assert found.rules["my:Nines"]["lift"].value == pytest.approx(tokens / of_step)
    assert found.rules["my:Nines"]["lift_unchanged"].value == 0  # it has no 9
    assert found.rules["uniform"]["lift"].value == pytest.approx(1)
    failed = gate({uniform: Hand()}, [pair], read, 0, FEW)
    assert (failed.passed, failed.by) == (False, "uniform")
    assert gate(rules, [], read, 0, FEW).passed is None


def test_groups_and_opponents_that_a_rule_gets(read):
    group = by_problem(RESPONSES)[1]
    made = read.read(group.responses)
    rule = Hand(2.0, needs={"hidden_states", "log_probs", "entropies", "token_ids"})
    traces = traces_of(rule, None, ReadGroup(1, 0, group.responses, made), read.tokenizer, 0)
    given = rule.seen.pop()
    assert given.correct == (True, False, False) and given.rewards == (1.0, 0.0, 0.0)
    for name in ("log_probs", "entropies", "token_ids"):
        assert all(torch.equal(a, getattr(b, name)) for a, b in zip(getattr(given, name), made, strict=True))
    assert all(torch.equal(a, b.states) for a, b in zip(given.hidden_states, made, strict=True))
    spans = [(trace.correct, trace.first_error, trace.error_end) for trace in traces]
    end = len("2 x 6 = 14\n\n"), len("First 2 x 6 = 12.\n\n"), len("First 2 x 6 = 12.\n\nThen 12 - 5 = 6 or so.\n\n")
    assert spans == [(True, None, None), (False, 0, end[0]), (False, *end[1:])]
    assert all(set(trace.weights.tolist()) == {2.0} for trace in traces)

    same = against_same_outcome(rule, ReadGroup(1, 0, group.responses, made), read.tokenizer)
    assert [(trace.first_error, trace.error_end) for trace in same] == [(0, end[0]), end[1:]]
    assert [seen.correct for seen in rule.seen] == [(False, True), (True, False)]
    assert all(torch.equal(rule.seen[0].log_probs[i], made[i + 1].log_probs) for i in (0, 1))
    alone = ReadGroup(1, 0, group.responses[:2], made[:2])
    assert against_same_outcome(rule, alone, read.tokenizer) == []


def test_controls_act_within_a_group(read):
    groups = by_problem(RESPONSES)[:2]
    rules = {variant: Hand() for variant in parse_rules("my:Rule,my:Rule/permuted,my:Rule/shuffled")}
    found = compare(rules, groups, read, 0, FEW)
    plain, told_others, _ = rules.values()
    own = [plain.seen[0], plain.seen[2]]  # between and after them come three calls against the same outcome
    assert len(plain.seen) == 5 and len(told_others.seen) == 2
    for group, seen in zip(own, told_others.seen, strict=True):
        assert seen.correct not in (group.correct, tuple(not outcome for outcome in group.correct))
        assert sorted(seen.correct) == sorted(group.correct)
    assert [placed["lift"].value for placed in found.rules.values()] == pytest.approx([1, 1, 1])
    assert found.rules["my:Rule"]["lift_same_outcome"].value == pytest.approx(1)
    assert found.rules["my:Rule/permuted"]["lift_same_outcome"].value is None
    assert found.differences["my:Rule"]["my:Rule/shuffled"].value == pytest.approx(0)


RULES = "shear/window=16/stride=8,text/window=16/stride=8,error_odds/rise=0,text/window=16/stride=8/permuted"


def words(model, rows, output, rules=RULES) -> list[str]:
    line = ["--model", model, "--responses", rows, "--rules", rules, "--output", output, "--resamples", 20]
    return [str(word) for word in line]


def test_the_command_resumes_and_gives_equal_files(model, tmp_path, capsys, monkeypatch):
    rows = write_rows(tmp_path / "rows.jsonl", [*map(as_row, RESPONSES), as_row(Response(OTHER, ("7",), True, None))])
    line = words(model, rows, tmp_path / "out")
    main(line)
    told = capsys.readouterr().out
    assert told.index("Gate: ") < told.index("The gate: numbers that we changed") < told.index("Where the weight")
    written = (tmp_path / "out/results.json").read_bytes()
    found = json.loads(written)
    assert found["counts"] == {"problems": 2, "responses": 8, "wrong": 4, "marked": 3}
    assert list(found["comparison"]["rules"]) == RULES.split(",") and len(found["gate"]["rules"]) == 3
    assert found["comparison"]["rules"][RULES.split(",")[0]]["responses"] == 2  # one has no token before its error
    assert not any(response.steps[0] in written.decode() for response in RESPONSES)

    kept = sorted((tmp_path / "out/readings").iterdir())
    passes, computed = Reader._pass, []
    monkeypatch.setattr(Reader, "_pass", lambda self, some: computed.append(some) or passes(self, some))
    kept[0].unlink()
    main(line)
    assert len(computed) == 1 and (tmp_path / "out/results.json").read_bytes() == written
    shutil.rmtree(tmp_path / "out")
    main(line)
    assert len(computed) == 1 + len(kept) and (tmp_path / "out/results.json").read_bytes() == written


@pytest.mark.parametrize(*cases("lab", "test_errors_are_a_line"))
def test_errors_are_a_line(tmp_path, capsys, rules, more, said):
    rows = write_rows(tmp_path / "rows.jsonl")
    told = refusal(capsys, [*words("./none", rows, tmp_path / "out", rules), *more], main)
    assert said in told and "\n" not in told and not (tmp_path / "out").exists()


def test_a_permuted_control_of_two_responses_is_a_line(tmp_path, capsys):
    """With two responses, other outcomes are these or their opposite, which a rule weighs alike."""
    rows = write_rows(tmp_path / "rows.jsonl", [as_row(each) for each in by_problem(RESPONSES)[1].responses[::2]])
    told = refusal(capsys, words("./none", rows, tmp_path / "out"), main)
    assert "none of 1 problems with 3 responses has both" in told and "use /shuffled in place of /permuted" in told


def test_no_mixed_problem_is_a_line(tmp_path, capsys):
    rows = write_rows(tmp_path / "rows.jsonl", [as_row(RESPONSES[0])])
    assert "none of 1 problems with 3 responses has both" in refusal(
        capsys, words("./none", rows, tmp_path / "out"), main
    )


def test_help_is_quick():
    run, loaded = run_fresh("offline", ["--help"], ("torch", "numpy", "transformers"))
    assert run.returncode == 0 and loaded == [] and "grade-school-math" in run.stdout


def test_no_text_of_the_data_is_in_the_committed_results():
    for path in Path(__file__).parents[3].glob("benchmarks/results/offline_*.json"):
        content = json.loads(path.read_text())
        assert {"made", "gate", "comparison", "counts"} <= content.keys() and "steps" not in path.read_text()
