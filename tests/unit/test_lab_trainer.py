"""The lab's trainer against what it stands for: OpenRLHF's loss, transformers' forward pass, AdamW, credit by hand."""

import importlib.util
import json
import math
import subprocess
import sys
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit import Credit, CreditRule, shear_weights
from openrlhf_shear.credit.rule import UpdateRule
from openrlhf_shear.credit.shear import ShearRule
from openrlhf_shear.credit.uniform import UniformRule
from openrlhf_shear.data.arithmetic import POLICY_DIR, make_problems, parse_problem
from openrlhf_shear.lab import trainer
from openrlhf_shear.lab.controls import mass_matched, shuffled
from openrlhf_shear.lab.credit import credited, group_advantages
from openrlhf_shear.lab.loss import policy_loss
from openrlhf_shear.lab.policy import Policy, Reading
from openrlhf_shear.lab.rollouts import graded, sample
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.variants import parse_rules

SETTINGS = LabSettings(prompts=2, samples_per_prompt=4, steps=2, eval_problems=4, window=4, precision="float32")
CLIP = SETTINGS.clip_low, SETTINGS.clip_high
PROMPT = "37a+45bx7c-12d+08ex3f-31g+77="
RIGHT = "a37+45=82;~b7x82=74;.,c-12+74=62;d62+08=70;~e70x3=10;f-31+10=79;_g79+77=56;#56"
EOS = "<eos>"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def policy():
    return Policy(POLICY_DIR, SETTINGS)


@pytest.fixture(scope="module")
def rollouts(policy):
    """Three groups of four: two mixed, one with a lucky rollout, and one without a right answer."""
    lucky, early = RIGHT.replace("b7x82=74", "b7x82=84"), RIGHT[:33]
    wrong = lucky.replace("#56", "#66")
    texts = [RIGHT + EOS, RIGHT, wrong + EOS, early + EOS, lucky + EOS, wrong[:40], early, early + EOS]
    texts += [wrong, wrong + EOS, early, early + EOS]
    return graded(policy.tokenizer, [parse_problem(PROMPT)] * 12, [tokens(policy, text) for text in texts], 4)


@pytest.fixture(scope="module")
def reading(policy, rollouts):
    with torch.no_grad():
        return policy.read(rollouts.sequences, rollouts.mask, states=True)


def tokens(policy, text):
    body = torch.tensor(policy.tokenizer.encode(text.removesuffix(EOS), add_special_tokens=False))
    return torch.cat([body, torch.tensor([policy.tokenizer.eos_token_id])]) if text.endswith(EOS) else body


# --- the loss


def ratios(seed):
    """Log-probs, advantages and a mask of (3, 40), every fourth token clipped or not by either sign; masked tokens
    would change everything."""
    generator = torch.Generator().manual_seed(seed)
    old = -4 * torch.rand(3, 40, generator=generator)
    new = old + 0.4 * torch.randn(3, 40, generator=generator)
    advantages = torch.randn(3, 40, generator=generator)
    mask = torch.rand(3, 40, generator=generator) < 0.7
    new[~mask], advantages[~mask] = 7.0, -1e4
    return new, old, advantages, mask


def loss_oracle(new, old, advantages, mask):
    """Loss, clip ratio, KL and d loss / d log-probs, token by token in float64."""
    count, terms, clipped, kl = int(mask.sum()), [], 0, []
    gradient = np.zeros(mask.shape)
    for at in zip(*np.nonzero(mask.numpy()), strict=True):
        a, log_ratio = float(advantages[at]), float(new[at]) - float(old[at])
        ratio = math.exp(min(max(log_ratio, -20.0), 20.0))
        inside = min(max(ratio, 1 - CLIP[0]), 1 + CLIP[1])
        is_clipped = inside * a < ratio * a
        terms.append(-min(ratio * a, inside * a))
        clipped += is_clipped
        kl.append(-log_ratio)
        gradient[at] = 0.0 if is_clipped or abs(log_ratio) > 20 else -ratio * a / count
    return sum(terms) / count, clipped / count, sum(kl) / count, gradient


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_is_ppo_s_token_by_token(seed):
    new, old, advantages, mask = ratios(seed)
    new.requires_grad_()
    got = policy_loss(new, old, advantages, mask, CLIP)
    got.loss.backward()
    loss, clip_ratio, kl, gradient = loss_oracle(new.detach(), old, advantages, mask)
    assert 0.1 < clip_ratio < 0.9
    # a log ratio of numbers below 8 is off by up to 2.4e-7, so is each term relatively, and these are about 1
    assert got.loss.item() == pytest.approx(loss, abs=1e-6)
    assert got.clip_ratio == pytest.approx(clip_ratio, abs=1e-6) and got.kl == pytest.approx(kl, abs=1e-6)
    np.testing.assert_allclose(new.grad, gradient, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("log_ratio", "advantage"), [(25.0, -0.5), (25.0, 0.5), (-25.0, -0.5), (-25.0, 0.5)])
def test_a_log_ratio_beyond_20_neither_overflows_nor_moves(log_ratio, advantage):
    new = torch.tensor([[0.0]], requires_grad=True)
    values = torch.tensor([[-log_ratio]]), torch.tensor([[advantage]]), torch.tensor([[True]])
    got = policy_loss(new, *values, CLIP)
    got.loss.backward()
    loss, clip_ratio, kl, _ = loss_oracle(new.detach(), *values)
    assert (got.loss.item(), got.clip_ratio, got.kl) == (pytest.approx(loss, rel=1e-6), clip_ratio, kl)
    assert new.grad.item() == 0.0


def test_the_loss_is_openrlhf_s(tmp_path):
    """In a process of its own: what makes OpenRLHF importable without CUDA stays there."""
    if importlib.util.find_spec("openrlhf") is None:
        pytest.skip("OpenRLHF is not installed")
    code = """
import json, sys, torch
from openrlhf_shear.fork import cpu_backend
cpu_backend.install()
from openrlhf.models.loss import PolicyLoss
upstream, rows = PolicyLoss(clip_eps_low=0.2, clip_eps_high=0.28), []
for new, old, advantages, mask in torch.load(sys.argv[1]):
    new.requires_grad_()
    loss, clip_ratio, kl, *_ = upstream(new, old, advantages, mask, batch_num_tokens=mask.sum())
    loss.backward()
    rows.append([loss.item(), clip_ratio.item(), kl.item(), new.grad.flatten().tolist()])
print(json.dumps(rows))
"""
    batches = [ratios(seed) for seed in range(3)]
    far = ratios(3)
    far[0][far[3]] = far[1][far[3]] + 25.0
    batches.append((far[0], far[1], far[2].abs(), far[3]))
    torch.save(batches, tmp_path / "batches.pt")
    command = [sys.executable, "-c", code, str(tmp_path / "batches.pt")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    upstream = json.loads(run.stdout.splitlines()[-1])
    for (new, *others), (loss, clip_ratio, kl, gradient) in zip(batches, upstream, strict=True):
        new.requires_grad_()
        got = policy_loss(new, *others, CLIP)
        got.loss.backward()
        # the same float32 terms, summed in another order
        assert got.loss.item() == pytest.approx(loss, rel=1e-6, abs=1e-6)
        assert got.clip_ratio == pytest.approx(clip_ratio, abs=1e-6)
        assert got.kl == pytest.approx(kl, rel=1e-6, abs=1e-6)
        np.testing.assert_allclose(new.grad.flatten(), gradient, rtol=1e-6, atol=1e-9)


# --- the policy


def test_a_reading_is_a_plain_forward_pass(policy, rollouts, reading):
    """In float64, without padding. Measured: log-probs (to -12) are off by 7e-6, entropies 2e-6, states (to 6) 1e-5."""
    plain = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float64)
    for row, length in enumerate(rollouts.lengths):
        first, end = len(PROMPT), len(PROMPT) + length
        with torch.no_grad():
            found = plain(rollouts.sequences[row : row + 1, :end], output_hidden_states=True)
        log_all = found.logits[0, first - 1 : end - 1].log_softmax(-1)
        log_probs = log_all.gather(1, rollouts.sequences[row, first:end, None])[:, 0]
        entropies = torch.distributions.Categorical(logits=log_all).entropy()
        mask, states = rollouts.mask[row], found.hidden_states[-1][0, first:end]
        for got, wanted in (
            (reading.log_probs[row][mask], log_probs),
            (reading.entropies[row][mask], entropies),
            (reading.states[row], states),
        ):
            assert got.dtype == torch.float32
            torch.testing.assert_close(got.double(), wanted, atol=5e-5, rtol=0)


def mean_loss(model, sequences):
    log_all = model(input_ids=sequences, use_cache=False).logits[:, :-1].float().log_softmax(-1)
    return -log_all.gather(-1, sequences[:, 1:, None]).mean()


def test_updates_in_float32_are_adamw_s(rollouts):
    settings = replace(SETTINGS, learning_rate=1e-3, max_grad_norm=0.5)
    trained = Policy(POLICY_DIR, settings)
    plain = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32, attn_implementation="eager").eval()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    sequences = rollouts.sequences[:2]
    for _ in range(3):
        norm = trained.update(mean_loss(trained.model, sequences))
        optimizer.zero_grad()
        mean_loss(plain, sequences).backward()
        expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5).item()
        optimizer.step()
        assert norm == expected > 0.5, "the gradient must be clipped"
    start = Policy(POLICY_DIR, settings).model.state_dict()
    for name, weight in plain.state_dict().items():
        got = trained.model.state_dict()[name]
        assert torch.equal(got, weight) and not torch.equal(got, start[name]), name


def test_steps_too_small_for_bfloat16_add_up(rollouts):
    """Steps of 0.001 on norm weights of about 1, where bfloat16's are 0.004 and 0.008 apart."""
    trained = Policy(POLICY_DIR, replace(SETTINGS, precision="bfloat16", learning_rate=1e-3))
    norm = trained.model.model.norm.weight
    assert norm.dtype == torch.bfloat16
    before = norm.detach().clone()
    near_one = (before > 0.6) & (before < 1.9)
    trained.update(mean_loss(trained.model, rollouts.sequences[:2]))
    assert torch.equal(norm[near_one], before[near_one]), "one step must round back, or the test shows nothing"
    for _ in range(7):
        trained.update(mean_loss(trained.model, rollouts.sequences[:2]))
    assert (norm != before)[near_one].float().mean() > 0.5
    assert {weight.dtype for weight in trained._weights} == {torch.float32}


# --- rollouts


def test_graded_responses_have_outcomes_errors_and_masks(policy, rollouts):
    assert rollouts.lengths[:4] == (79, 78, 79, 34)
    assert rollouts.correct == (True, True, False, False, True, *[False] * 7)
    # b7x82=[8]4; the early ones are right up to their end, where <eos> or nothing is
    wrong, early = RIGHT.index("74;"), 33
    assert rollouts.first_errors == (None, None, wrong, early, *(wrong, wrong, early, early) * 2)
    assert [group.start for group in rollouts.groups] == [0, 4, 8] and rollouts.groups[1].stop == 8
    assert rollouts.mixed == pytest.approx(2 / 3) and rollouts.accuracy == 3 / 12
    decode, pad = policy.tokenizer.decode, policy.tokenizer.pad_token_id
    for i, length in enumerate(rollouts.lengths):
        row, mask = rollouts.sequences[i], rollouts.mask[i]
        assert decode(row[: len(PROMPT)]) == PROMPT and int(mask.sum()) == length
        assert not mask[: len(PROMPT) - 1].any() and not mask[len(PROMPT) - 1 + length :].any()
        assert (row[len(PROMPT) + length :] == pad).all()
    assert decode(rollouts.sequences[0, 1:][rollouts.mask[0]]) == RIGHT + policy.tokenizer.eos_token
    assert decode(rollouts.sequences[1, 1:][rollouts.mask[1]]) == RIGHT
    assert decode(rollouts.sequences[6, 1:][rollouts.mask[6]]) == RIGHT[:33]


def test_a_policy_that_cannot_read_the_prompts_is_refused(policy):
    """Nine operations have letters that the shipped tokenizer leaves out without a word."""
    with pytest.raises(
        ValueError, match=r"lab\.start: the policy reads the prompt .*i.* as .*warmed up for 9 operations"
    ):
        sample(policy, make_problems(2, 0, operations=9), 2, replace(SETTINGS, operations=9), 0)


# --- credit


class Hand(CreditRule):
    """Weights, and perhaps others below 0; what it was given is kept."""

    def __init__(self, weight=1.0, below=None, needs=()):
        self.weight, self.below, self.needs, self.seen = weight, below, frozenset(needs), []

    def credit(self, group):
        self.seen.append(group)
        below = None if self.below is None else [torch.full((n,), self.below) for n in group.lengths]
        return Credit([torch.full((n,), self.weight) for n in group.lengths], negative_weights=below)


class Rising(CreditRule):
    """A weight that rises, to be shuffled."""

    def credit(self, group):
        return Credit([torch.arange(n) / n for n in group.lengths])


class Maker(CreditRule):
    """Advantages 0, 1, 2, ... of its own, minus the step's mean."""

    makes_advantages = True

    def credit(self, group):
        return Credit(advantages=[torch.arange(n, dtype=torch.float64) for n in group.lengths])

    def over_batch(self, advantages):
        return [row - torch.cat(list(advantages)).mean() for row in advantages]


class Zero(UpdateRule):
    def advantages(self, advantages, entropies, mask):
        return torch.zeros_like(advantages), {}


def plain_advantages(rollouts):
    base = group_advantages(rollouts.correct, rollouts.group_size)
    return base, [torch.full((n,), value) for n, value in zip(rollouts.lengths, base, strict=True)]


def test_base_advantages_are_group_norm_and_exactly_0_for_equal_rewards():
    generator = np.random.default_rng(0)
    rewards = np.concatenate([generator.random((20, 8)) < 0.4, np.ones((1, 8), bool), np.zeros((1, 8), bool)])
    got = np.array(group_advantages(tuple(rewards.flatten().tolist()), 8)).reshape(22, 8)
    centred = rewards - rewards.mean(1, keepdims=True)
    spread = rewards.std(1, ddof=1, keepdims=True)
    # float32: the mean and the standard deviation are off by some 1e-7
    np.testing.assert_allclose(got, np.where(spread > 0, centred / (spread + 1e-9), 0), rtol=1e-6)
    assert not got[20:].any() and not np.signbit(got[20:]).any()


def test_credit_is_base_times_the_rule_s_weights(rollouts, reading):
    config = ShearConfig(window=8, stride=4, epsilon_rel=0.03)
    got = credited(ShearRule(config), None, rollouts, reading, 0)
    base, plain = plain_advantages(rollouts)
    assert got.base == base and got.seconds > 0
    weights = []
    for first in (0, 4, 8):
        members = slice(first, first + 4)
        weights += shear_weights(reading.states[members], rollouts.correct[members], config).weights
    assert all(torch.equal(row, a * w) for row, a, w in zip(got.advantages, plain, weights, strict=True))
    assert (torch.cat(weights[:8]) != 1).any() and not torch.cat(got.advantages[8:]).any()


def test_negative_advantages_take_negative_weights(rollouts, reading):
    got = credited(Hand(2.0, below=0.5), None, rollouts, reading, 0)
    _, plain = plain_advantages(rollouts)
    for row, before in zip(got.advantages, plain, strict=True):
        assert torch.equal(row, before * (0.5 if before[0] < 0 else 2.0))


def test_a_rule_that_makes_advantages_makes_them_of_the_whole_step(rollouts, reading):
    got = credited(Maker(), None, rollouts, reading, 0).advantages
    ramps = [torch.arange(n, dtype=torch.float32) for n in rollouts.lengths]
    expected = [ramp - torch.cat(ramps).mean() for ramp in ramps]
    assert all(row.dtype == torch.float32 and torch.equal(row, e) for row, e in zip(got, expected, strict=True))


def test_an_update_rule_leaves_the_base(rollouts, reading):
    got = credited(Zero(), None, rollouts, reading, 0)
    assert all(map(torch.equal, got.advantages, plain_advantages(rollouts)[1])) and got.seconds == 0.0


def test_a_control_takes_the_place_of_the_rule_s_advantages(rollouts, reading):
    rule = Rising()
    plain = credited(rule, None, rollouts, reading, 3)
    for control, made in (("shuffled", shuffled), ("matched", mass_matched)):
        got = credited(rule, control, rollouts, reading, 3).advantages
        assert all(map(torch.equal, got, made(plain.advantages, plain.base, 3)))
        assert not torch.equal(torch.cat(got), torch.cat(plain.advantages))


def test_a_rule_is_given_what_it_needs_and_nothing_else(rollouts, reading):
    rule = Hand(needs={"log_probs", "first_errors"})
    credited(rule, None, rollouts, reading, 0)
    assert [group.number for group in rule.seen] == [0, 1, 2]
    for group, members in zip(rule.seen, rollouts.groups, strict=True):
        assert group.lengths == rollouts.lengths[members] and group.correct == rollouts.correct[members]
        assert group.rewards == tuple(map(float, group.correct))
        assert group.first_errors == rollouts.first_errors[members]
        assert group.hidden_states is group.entropies is None
    row = slice(len(PROMPT) - 1, len(PROMPT) - 1 + rollouts.lengths[6])
    assert torch.equal(rule.seen[1].log_probs[2], reading.log_probs[6, row])
    rule = Hand(needs={"entropies", "hidden_states"})
    credited(rule, None, rollouts, reading, 0)
    assert torch.equal(rule.seen[1].entropies[2], reading.entropies[6, row])
    assert torch.equal(rule.seen[1].hidden_states[2], reading.states[6])
    assert rule.seen[0].log_probs is None and rule.seen[0].first_errors == ()
    without = Reading(reading.log_probs, reading.entropies, None)
    assert credited(UniformRule(), None, rollouts, without, 0).base == plain_advantages(rollouts)[0]


# --- training


@dataclass(frozen=True)
class Made:
    """A variant by hand."""

    name: str
    made: object
    control: str | None = None

    def rule(self, settings):
        return self.made


def numbers(run):
    """A run without its name and its seconds."""
    metrics = {name: values for name, values in run.metrics.items() if not name.endswith("seconds")}
    return {each.name: getattr(run, each.name) for each in fields(run)} | {"metrics": metrics, "seconds": 0, "rule": ""}


@pytest.fixture(scope="module")
def runs():
    (uniform, shear), first = parse_rules("uniform,shear"), replace(SETTINGS, steps=1, eval_problems=1)
    torch.manual_seed(1)
    return {
        "uniform": trainer.train(SETTINGS, uniform, 3, POLICY_DIR),
        "ones": trainer.train(SETTINGS, Made("ones", Hand(1.0)), 3, POLICY_DIR),
        "shear": trainer.train(first, shear, 3, POLICY_DIR),
    }


def test_a_run_has_its_numbers(runs):
    run = runs["uniform"]
    assert (run.rule, run.seed, len(run.accuracy)) == ("uniform", 3, SETTINGS.steps)
    assert {len(values) for values in run.metrics.values()} == {SETTINGS.steps}
    assert {"loss", "grad_norm", "clip_ratio", "kl", "mixed_groups", "positive_credit"} <= run.metrics.keys()
    assert run.final in (0, 0.25, 0.5, 0.75, 1) and run.seconds >= sum(run.metrics["seconds"])
    assert run.metrics["kl"][0] != 0 and any(run.metrics["grad_norm"])


def test_the_same_run_twice_whatever_torch_s_random_state(runs):
    torch.manual_seed(2)
    state = torch.get_rng_state()
    steps = []
    (uniform,) = parse_rules("uniform")
    again = trainer.train(SETTINGS, uniform, 3, POLICY_DIR, lambda: steps.append(1))
    assert numbers(again) == numbers(runs["uniform"]) and len(steps) == SETTINGS.steps
    assert torch.equal(torch.get_rng_state(), state)


def test_uniform_is_a_rule_of_ones(runs):
    assert numbers(runs["ones"]) == numbers(runs["uniform"])


def test_rules_of_one_seed_are_paired(runs):
    def start(run):
        return run.accuracy[0], run.metrics["response_length"][0], run.metrics["entropy"][0]

    assert start(runs["shear"]) == start(runs["uniform"])
    assert runs["shear"].metrics["loss"][0] != runs["uniform"].metrics["loss"][0]


def test_seeds_have_other_problems_and_random_numbers_and_one_held_out_set(monkeypatch):
    asked = {3: [], 4: []}
    for seed, found in asked.items():

        def recorded(policy, problems, group_size, settings, draw, found=found):
            found.append(({problem.prompt for problem in problems}, draw))
            responses = [tokens(policy, problem.prompt) for problem in problems for _ in range(group_size)]
            return graded(policy.tokenizer, [p for p in problems for _ in range(group_size)], responses, group_size)

        monkeypatch.setattr(trainer, "sample", recorded)
        trainer.train(SETTINGS, Made("ones", Hand(1.0)), seed, POLICY_DIR)
    (first, second, heldout), others = ([prompts for prompts, _ in asked[seed]] for seed in (3, 4))
    assert heldout == others[2] and len(heldout) == SETTINGS.eval_problems
    assert len(first | second | others[0] | others[1] | heldout) == 4 * SETTINGS.prompts + SETTINGS.eval_problems
    draws = [draw for seed in (3, 4) for _, draw in asked[seed][: SETTINGS.steps]]
    assert len(set(draws)) == 4


def test_an_update_rule_shapes_what_the_loss_sees(monkeypatch):
    trained = []
    monkeypatch.setattr(trainer, "Policy", lambda *of: trained.append(Policy(*of)) or trained[0])
    run = trainer.train(replace(SETTINGS, steps=1, eval_problems=1), Made("zero", Zero()), 3, POLICY_DIR)
    assert run.metrics["mixed_groups"][0] > 0, "there must be credit to take away"
    assert run.metrics["grad_norm"] == run.metrics["positive_credit"] == run.metrics["negative_credit"] == (0.0,)
    start = Policy(POLICY_DIR, SETTINGS).model.state_dict()
    assert all(torch.equal(weight, start[name]) for name, weight in trained[0].model.state_dict().items())
