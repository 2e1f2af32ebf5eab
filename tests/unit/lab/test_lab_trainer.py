"""The lab's trainer against PPO's loss, transformers' forward pass, AdamW and credit by hand.

distributed/test_experience.py checks that the loss is OpenRLHF's.
"""

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
import torch
from lab_cases import PROMPT, RIGHT, SETTINGS, Hand, Zero, tokens
from transformers import AutoModelForCausalLM

from openrlhf_shear.credit.rule import Credit
from openrlhf_shear.lab import trainer
from openrlhf_shear.lab.policy import Policy
from openrlhf_shear.lab.rollouts import graded, sample
from openrlhf_shear.lab.trainer import policy_loss
from openrlhf_shear.lab.variants import parse_rules
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR, make_problems
from openrlhf_shear.tasks.arithmetic.task import ArithmeticTask

CLIP = SETTINGS.clip_low, SETTINGS.clip_high


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
        bounded = math.log(ratio)
        kl.append(math.expm1(bounded) - bounded)
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
    assert (got.loss.item(), got.clip_ratio, got.kl) == (pytest.approx(loss, rel=1e-6), clip_ratio, pytest.approx(kl))
    assert new.grad.item() == 0.0


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
    """Of `uniform`; of a rule of ones, with torch in another random state; and a first step of `shear`."""
    (uniform, shear), first, steps = parse_rules("uniform,shear"), replace(SETTINGS, steps=1, eval_problems=1), []
    torch.manual_seed(1)
    made = {"uniform": trainer.train(SETTINGS, uniform, 3, POLICY_DIR)}
    torch.manual_seed(2)
    state = torch.get_rng_state()
    made["ones"] = trainer.train(SETTINGS, Made("ones", Hand(1.0)), 3, POLICY_DIR, lambda: steps.append(1))
    assert torch.equal(torch.get_rng_state(), state) and len(steps) == SETTINGS.steps
    return made | {"shear": trainer.train(first, shear, 3, POLICY_DIR)}


def test_a_run_has_its_numbers(runs):
    run = runs["uniform"]
    assert (run.rule, run.seed, len(run.accuracy)) == ("uniform", 3, SETTINGS.steps)
    assert {len(values) for values in run.metrics.values()} == {SETTINGS.steps}
    assert {"loss", "grad_norm", "clip_ratio", "kl", "mixed_groups", "positive_credit"} <= run.metrics.keys()
    assert 16 * run.final in range(17) and run.seconds >= sum(run.metrics["seconds"])
    assert run.metrics["kl"][0] != 0 and any(run.metrics["grad_norm"])


def test_a_step_logs_the_contrast_of_the_credit():
    """Incorrect rollouts have twice the weight, and the last quarter of each response three times that before it."""

    class Late(Hand):
        def credit(self, group):
            late = [(torch.arange(n) + 0.5) / n >= 0.75 for n in group.lengths]
            sides = [1.0 if correct else 2.0 for correct in group.correct]
            return Credit([side * (1 + 2 * last.float()) for side, last in zip(sides, late, strict=True)])

    single = replace(SETTINGS, steps=1, eval_problems=1)
    got = trainer.train(single, Made("late", Late(1.0)), 3, POLICY_DIR).metrics
    # twice as many tokens in a longer response change no mean; lengths that no 4 divides change the second by below 5%
    assert got["contrast/last_first"] == (pytest.approx(3.0),)
    assert got["contrast/wrong_right"] == (pytest.approx(2.0, rel=0.05),)
    plain = trainer.train(single, Made("ones", Hand(1.0)), 3, POLICY_DIR).metrics
    assert plain["contrast/last_first"] == plain["contrast/wrong_right"] == (1.0,)


def test_uniform_is_a_rule_of_ones_whatever_torch_s_random_state(runs):
    assert numbers(runs["ones"]) == numbers(runs["uniform"])


def test_rules_of_one_seed_are_paired(runs):
    def start(run):
        return run.accuracy[0], run.metrics["response_length"][0], run.metrics["entropy"][0]

    assert start(runs["shear"]) == start(runs["uniform"])
    assert runs["shear"].metrics["loss"][0] != runs["uniform"].metrics["loss"][0]


def test_seeds_have_other_problems_and_random_numbers_and_one_held_out_set(monkeypatch):
    asked = {3: [], 4: []}
    for seed, found in asked.items():

        def recorded(policy, problems, group_size, settings, draw, temperature=1.0, found=found):
            found.append(({problem.prompt for problem in problems}, draw))
            responses = [tokens(policy, problem.prompt) for problem in problems for _ in range(group_size)]
            repeated = [p for p in problems for _ in range(group_size)]
            return graded(ArithmeticTask(), policy.tokenizer, repeated, responses, group_size)

        monkeypatch.setattr(trainer, "sample", recorded)
        trainer.train(SETTINGS, Made("ones", Hand(1.0)), seed, POLICY_DIR)
    (first, second, heldout), others = ([prompts for prompts, _ in asked[seed]] for seed in (3, 4))
    assert heldout == others[2] and len(heldout) == SETTINGS.eval_problems
    assert len(first | second | others[0] | others[1] | heldout) == 4 * SETTINGS.prompts + SETTINGS.eval_problems
    draws = [draw for seed in (3, 4) for _, draw in asked[seed][: SETTINGS.steps]]
    assert len(set(draws)) == 4


def test_mini_batches_are_read_once_before_the_update_and_the_graph_of_the_first_is_kept(policy, rollouts):
    parts = torch.tensor([7, 2, 0, 5, 9, 1, 11, 3, 10, 4, 8, 6]).chunk(2)
    whole, first = trainer.read_mini_batches(policy, rollouts, parts, {"hidden_states"})
    plain = policy.read(rollouts.sequences, rollouts.mask, states=True)
    # Float32, the same sequences in smaller batches.
    for name in ("log_probs", "entropies"):
        torch.testing.assert_close(getattr(whole, name), getattr(plain, name), atol=1e-5, rtol=0)
    for mine, its in zip(whole.states, plain.states, strict=True):
        torch.testing.assert_close(mine, its, atol=1e-4, rtol=0)
    assert torch.equal(first.log_probs, whole.log_probs[parts[0]])
    assert first.log_probs.requires_grad and not whole.log_probs.requires_grad
    assert trainer.read_mini_batches(policy, rollouts, parts, {"log_probs"})[0].states is None


def test_an_update_rule_shapes_the_advantages_of_the_loss(monkeypatch):
    trained = []
    monkeypatch.setattr(trainer, "Policy", lambda *of: trained.append(Policy(*of)) or trained[0])
    run = trainer.train(replace(SETTINGS, steps=1, eval_problems=1), Made("zero", Zero()), 3, POLICY_DIR)
    assert run.metrics["mixed_groups"][0] > 0, "there must be credit to take away"
    assert run.metrics["grad_norm"] == run.metrics["positive_credit"] == run.metrics["negative_credit"] == (0.0,)
    start = Policy(POLICY_DIR, SETTINGS).model.state_dict()
    assert all(torch.equal(weight, start[name]) for name, weight in trained[0].model.state_dict().items())
