"""Runs trained side by side: the tokens that they draw together, and the runs themselves, on the CPU."""

import copy
import functools
import threading
from dataclasses import replace

import pytest
import torch
from scipy.stats import chisquare

from openrlhf_shear.lab import engine as engine_module
from openrlhf_shear.lab.engine import Asked, Engine
from openrlhf_shear.lab.policy import Policy
from openrlhf_shear.lab.rollouts import sample
from openrlhf_shear.lab.runs import SIDE_BY_SIDE, batches, jobs
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.side_by_side import Together, train_together
from openrlhf_shear.lab.tasks import task_of
from openrlhf_shear.lab.trainer import train
from openrlhf_shear.lab.variants import parse_rules
from openrlhf_shear.tasks.arithmetic.plain_policy import load_plain

TINY = LabSettings(prompts=1, samples_per_prompt=4, steps=2, precision="float32", eval_problems=2, eval_samples=1)
START = task_of(TINY).shipped()
T = 24
ON_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def policies():
    """Two policies with different weights, in float64, and their tokenizer."""
    pair = []
    for seed in range(2):
        model, tokenizer = load_plain(START)
        generator = torch.Generator().manual_seed(seed)
        for weight in model.parameters():
            weight.data = (weight * (1 + 0.1 * torch.randn(weight.shape, generator=generator))).double()
        pair.append(model)
    return pair, tokenizer


def padded(tokenizer, prompts):
    rows = tokenizer(prompts)
    return rows["input_ids"], rows["attention_mask"]


def asked_by(policies, seeds=(5, 9), temperatures=(1.0, 0.4), tokens=T):
    models, tokenizer = policies
    texts = [problem.prompt for problem in task_of(TINY).problems(3, 0)]
    texts[1] = texts[1][-12:]  # of another length, so that it is padded
    rows = padded(tokenizer, texts), padded(tokenizer, [text[-9:] for text in texts])
    return [
        Asked(model, *row, tokens, temperature, seed)
        for model, row, temperature, seed in zip(models, rows, temperatures, seeds, strict=True)
    ]


@torch.no_grad()
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_A_GPU)])
def test_a_drawn_token_is_the_argmax_of_probabilities_over_the_noise_of_its_seed(policies, device):
    """Against a reading of each whole sequence, alone and without padding, in float64."""
    models, tokenizer = policies
    for model in models:
        model.to(device)
    asked = asked_by(policies)
    responses = Engine(tokenizer.eos_token_id, tokenizer.pad_token_id).draw(asked)
    assert [rows.shape for rows in responses] == [(3, T), (3, T)]
    for each, rows in zip(asked, responses, strict=True):
        generator = torch.Generator(device).manual_seed(each.seed)
        noise = [torch.ones(3, len(tokenizer), device=device).exponential_(generator=generator) for _ in range(T)]
        for i, (prompt, attended, row) in enumerate(zip(each.prompts, each.attended, rows, strict=True)):
            prompt = prompt[attended.bool()]
            logits = each.model(torch.cat([prompt, row])[None].to(device)).logits[0, len(prompt) - 1 : -1]
            odds = (logits / each.temperature).softmax(-1) / torch.stack(noise)[:, i].double()
            assert row.tolist() == odds.argmax(-1).tolist()
    assert responses[0].tolist() != responses[1].tolist()


def test_a_policy_draws_the_same_beside_any_other_policy(policies):
    _, tokenizer = policies
    first, second = asked_by(policies)
    ends = tokenizer.eos_token_id, tokenizer.pad_token_id
    both = Engine(*ends).draw([first, second])
    assert Engine(*ends).draw([first])[0].equal(both[0])
    shorter = Engine(*ends).draw([replace(first, new_tokens=9), second])
    assert shorter[0].equal(both[0][:, :9]) and shorter[1].equal(both[1])
    again = Engine(*ends)
    assert all(again.draw([first, second])[0].equal(both[0]) for _ in range(2))  # the memory of a call holds no other


def test_a_response_ends_at_eos_and_is_padded(policies, monkeypatch):
    _, tokenizer = policies
    monkeypatch.setattr(engine_module, "LOOK_EVERY", 4)
    asked = asked_by(policies)
    ending = Engine(tokenizer.eos_token_id, tokenizer.pad_token_id).draw(asked)[0]
    eos = int(ending[0, 2])  # a token that is drawn early, taken for <eos>
    rows = Engine(eos, tokenizer.pad_token_id).draw(asked)[0]
    for row, free in zip(rows, ending, strict=True):
        at = (free == eos).nonzero()
        end = int(at[0]) + 1 if len(at) else T
        assert row[:end].equal(free[:end]) and (row[end:] == tokenizer.pad_token_id).all()


def test_a_model_of_another_shape_is_refused():
    model, _ = load_plain(START)
    model.config.num_key_value_heads = 2
    with pytest.raises(ValueError, match="num_key_value_heads 2 runs on the CPU alone; use --device cpu"):
        engine_module.model_shape(model)


def whole_run(rule, seed, together):
    return train(TINY, parse_rules(rule)[0], seed, START, together=together)


def test_runs_side_by_side_are_the_runs_alone():
    """The engine draws for one run what it draws for three, and no run sees another's random state."""
    wanted = [("uniform", 3), ("shear", 3), ("shear", 4)]
    found, alone = {}, {}

    def work(to, rule, seed, together):
        to[rule, seed] = whole_run(rule, seed, together)

    train_together([functools.partial(work, found, *each) for each in wanted])
    for each in wanted:
        train_together([functools.partial(work, alone, *each)])
    for each in wanted:
        both = found[each], alone[each]
        beside, by_itself = ((*run.accuracy, run.final, *run.metrics["grad_norm"]) for run in both)
        # measured: equal; but products of more matrices may sum in another order
        assert beside == pytest.approx(by_itself, rel=1e-4)
    assert found["uniform", 3].accuracy[0] == found["shear", 3].accuracy[0]  # paired: the same draws before an update
    assert found["shear", 3].accuracy != found["shear", 4].accuracy


def test_a_policy_draws_a_token_with_its_own_probability():
    """4,000 draws of a first token, against the probabilities of a forward pass: chi-squared, p above 0.001."""
    policy = Policy(START, replace(TINY, precision="float32"), together := Together(1))
    prompt = torch.tensor([policy.tokenizer.encode("17+")])
    rows, drawn = prompt.repeat(4000, 1), []
    asked = {"input_ids": rows, "attention_mask": torch.ones_like(rows), "max_new_tokens": 1, "temperature": 2.0}
    together.run(lambda: drawn.append(policy.generate(**asked)[:, -1]))
    together.raise_failure()
    with torch.no_grad():
        expected = 4000 * (policy.model(prompt).logits[0, -1].double() / 2.0).softmax(-1)
    likely = expected >= 5
    counts = torch.bincount(drawn[0], minlength=len(expected)).double()
    seen, hoped = ([*values[likely].tolist(), values[~likely].sum().item()] for values in (counts, expected))
    assert likely.sum() >= 5, "a certain token tests nothing"
    assert chisquare(seen, hoped).pvalue > 0.001


def test_a_run_that_fails_stops_the_others_and_is_the_error():
    begun = threading.Event()

    def waits(together):
        begun.set()
        sample(Policy(START, TINY, together), task_of(TINY).problems(1, 0), 2, TINY, 1)

    def fails(together):
        begun.wait()
        raise ArithmeticError("a rule failed")

    with pytest.raises(ArithmeticError, match="a rule failed"):
        train_together([waits, fails])


@pytest.mark.parametrize(("missing", "workers", "sizes"), [(5, 2, [3, 2]), (40, 2, [16, 16, 8]), (3, 8, [1, 1, 1])])
def test_a_gpu_trains_runs_inbatches_and_a_cpu_one_by_one(tmp_path, missing, workers, sizes):
    variants = parse_rules("uniform")
    for device, expected in (("cuda", sizes), ("cpu", [1] * missing)):
        wanted = jobs(replace(TINY, device=device), variants, range(missing), START, "start", tmp_path)
        assert [len(batch) for batch in batches(wanted, workers)] == expected
    assert SIDE_BY_SIDE == 16


def test_runs_of_the_two_devices_are_kept_apart(tmp_path):
    variants = parse_rules("uniform")
    settings = TINY, replace(TINY, device="cuda")
    cpu, cuda = (jobs(each, variants, [0], START, "start", tmp_path)[0].path for each in settings)
    assert cpu.parents[1] != cuda.parents[1]


def test_a_diverged_policy_leaves_nothing_in_the_engine(policies):
    """Its NaNs stay in the keys and values, where the next call's policies have their own."""
    asked = asked_by(policies)
    _, tokenizer = policies
    engine = Engine(tokenizer.eos_token_id, tokenizer.pad_token_id)
    expected = [rows.tolist() for rows in engine.draw(asked)]
    broken = copy.deepcopy(asked[0].model)
    for weight in broken.parameters():
        weight.data.fill_(torch.nan)
    engine.draw([replace(asked[0], model=broken), asked[1]])
    assert [rows.tolist() for rows in engine.draw(asked)] == expected
