"""What rules can ask for beyond hidden states and log-probs, each compared with an independent computation."""

from dataclasses import replace

import pytest
import torch
from lab_cases import PROMPT, SETTINGS, Hand
from peft import LoraConfig, get_peft_model
from transformers import PhiConfig, PhiForCausalLM, Qwen2Config, Qwen2ForCausalLM

from openrlhf_shear.config import CreditSpec
from openrlhf_shear.credit.captured import LMHead, one_earlier, response_states, turn_numbers
from openrlhf_shear.credit.checks import checked_advantages
from openrlhf_shear.credit.groups import CreditRequest, GroupCollector
from openrlhf_shear.credit.registry import load_rule
from openrlhf_shear.credit.rule import LAB_ALONE, UpdateRule
from openrlhf_shear.integrations.rows import of_responses, rule_of
from openrlhf_shear.lab.credit import groups
from openrlhf_shear.lab.policy import Policy, Reading
from openrlhf_shear.lab.rollouts import Models, further_inputs
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR, parse_problem
from openrlhf_shear.tasks.arithmetic.task import ArithmeticTask

# The model's float32 and the oracle's float64 on the same states: 2e-6 was the largest difference over these rollouts.
LOGIT_NOISE = 2e-5
# Float32 log-probs of a sequence alone and in a padded batch: 2.9e-5 was the largest difference, at log-probs near -3.
BATCH_NOISE = 2e-4


@pytest.fixture(scope="module")
def whole_reading(policy, rollouts):
    with torch.no_grad():
        return policy.read(rollouts.sequences, rollouts.mask, states=True, source_states=True)


@pytest.fixture(scope="module")
def models(policy):
    return Models(policy, policy, ArithmeticTask())


def further(needs, models, rollouts, seed=0):
    return further_inputs(needs, models, [parse_problem(PROMPT)] * 3, rollouts, seed)


def alone(policy, row):
    """The log-probs (S - 1, V) float64 of one sequence by the plain model, without a batch."""
    with torch.no_grad():
        logits = policy.model(input_ids=row[None], use_cache=False).logits[0, :-1]
    return logits.double().log_softmax(-1)


# ── The distributions ──


def test_source_states_are_the_hidden_states_one_position_earlier(whole_reading):
    for states, sources in zip(whole_reading.states, whole_reading.source_states, strict=True):
        assert torch.equal(states[:-1], sources[1:]) and not torch.equal(states[0], sources[0])


def test_the_head_makes_the_distributions_that_tokens_were_drawn_from(policy, rollouts, whole_reading):
    head = policy.lm_head
    for i, sources in enumerate(whole_reading.source_states):
        ids = rollouts.sequences[i, 1:][rollouts.mask[i]]
        logits = sources.double() @ head.weight.double().T
        oracle = logits - logits.exp().sum(1, keepdim=True).log()
        made = head.log_probs(sources)
        torch.testing.assert_close(made.double(), oracle, atol=LOGIT_NOISE, rtol=0)
        drawn = made[torch.arange(len(ids)), ids]
        torch.testing.assert_close(drawn, whole_reading.log_probs[i][rollouts.mask[i]], atol=LOGIT_NOISE, rtol=0)
        entropies = -(oracle.exp() * oracle).sum(1)
        kept = whole_reading.entropies[i][rollouts.mask[i]].double()
        torch.testing.assert_close(kept, entropies, atol=LOGIT_NOISE, rtol=0)


SIZES = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def test_a_head_with_a_bias_makes_the_model_s_logits():
    torch.manual_seed(0)
    model = PhiForCausalLM(PhiConfig(**SIZES, pad_token_id=0)).eval()
    torch.nn.init.normal_(model.lm_head.bias)
    ids = torch.arange(1, 8)[None]
    with torch.no_grad():
        output = model(ids, output_hidden_states=True, use_cache=False)
    head = LMHead.of(model, 2.0)
    made = head.log_probs(output.hidden_states[-1][0])
    torch.testing.assert_close(made, (output.logits[0] / 2).log_softmax(-1), atol=LOGIT_NOISE, rtol=0)
    assert head.weight.data_ptr() == model.lm_head.weight.data_ptr() and not head.weight.requires_grad


def test_a_head_that_does_not_make_the_logits_alone_is_refused():
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES, num_key_value_heads=2))
    assert LMHead.of(model).bias is None
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(ValueError, match=r"final_logit_softcapping of the model's config.json changes the logits"):
        LMHead.of(model)
    model.config.final_logit_softcapping = None
    model.config.lm_head_multiplier = 0.02  # of Falcon-H1
    with pytest.raises(ValueError, match=r"lm_head_multiplier of the model's config.json changes the logits"):
        LMHead.of(model)
    model.config.lm_head_multiplier = None
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules=["lm_head"])).get_base_model()
    with pytest.raises(ValueError, match=r"the LM head is a peft\..*Linear; leave it without adapters"):
        LMHead.of(adapted)
    cut = Qwen2ForCausalLM(Qwen2Config(**SIZES, num_key_value_heads=2))
    cut.lm_head.weight.data = torch.empty(0)
    with pytest.raises(ValueError, match="cut into shards; use ZeRO-2"):
        LMHead.of(cut)


def test_source_positions_in_a_packed_batch_with_padding_on_both_sides():
    attention = torch.tensor([[0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]])
    action = torch.tensor([[0, 0, 1, 1, 0], [0, 1, 0, 1, 1]])  # the second has a tool's answer between two turns
    hidden = torch.arange(12.0).reshape(2, 6, 1)
    padded = response_states(hidden, attention, one_earlier(action), packed=False)
    assert [rows.flatten().tolist() for rows in padded] == [[2, 3], [7, 9, 10]]
    packed = response_states(hidden[attention.bool()][None], attention, one_earlier(action), packed=True)
    assert all(torch.equal(a, b) for a, b in zip(padded, packed, strict=True))


# ── Other models and contexts ──


def test_reference_log_probs_are_those_of_the_other_model(policy, models, rollouts):
    other = Policy(POLICY_DIR, SETTINGS)
    with torch.no_grad():
        other.model.get_output_embeddings().weight.mul_(1.5)
    made = further({"ref_log_probs"}, replace(models, reference=other), rollouts)["ref_log_probs"]
    for i in (0, 5, 11):
        row = rollouts.sequences[i][: int(rollouts.mask[i].nonzero()[-1]) + 2]
        oracle = alone(other, row)[torch.arange(len(row) - 1), row[1:]][-rollouts.lengths[i] :]
        torch.testing.assert_close(made[i].double(), oracle, atol=BATCH_NOISE, rtol=0)
        assert (made[i] - alone(policy, row)[torch.arange(len(row) - 1), row[1:]][-len(made[i]) :]).abs().max() > 0.01


def test_hints_are_the_next_correct_rollout_of_the_group(policy, models, rollouts, whole_reading):
    made = further({"hint_log_probs"}, models, rollouts)["hint_log_probs"]
    rows = [row[: int(mask.nonzero()[-1]) + 2] for row, mask in zip(rollouts.sequences, rollouts.mask, strict=True)]
    assert rollouts.correct[:4] == (True, True, False, False) and not any(rollouts.correct[8:])
    hints = {0: 1, 1: 0, 2: 0, 3: 0, 4: None, 5: 4, 7: 4, 8: None, 11: None}
    for i, j in hints.items():
        length = rollouts.lengths[i]
        if j is None:
            plain = whole_reading.log_probs[i][rollouts.mask[i]]
            torch.testing.assert_close(made[i], plain, atol=BATCH_NOISE, rtol=0)
            continue
        row = torch.cat([rows[j], rows[i]])
        oracle = alone(policy, row)[torch.arange(len(row) - 1), row[1:]][-length:]
        torch.testing.assert_close(made[i].double(), oracle, atol=BATCH_NOISE, rtol=0)


def test_continuations_have_the_task_s_rewards(models, rollouts):
    values = further({"continuations"}, models, rollouts, seed=5)["continuations"]
    wrong = next(i for i, error in enumerate(rollouts.first_errors) if error is not None and not rollouts.correct[i])
    lengths = rollouts.lengths
    places = [(0, lengths[0]), (wrong, lengths[wrong]), (0, lengths[0] - 2), (0, lengths[0] - 2)]
    first = values(places, 8)
    assert first[:2] == [1.0, 0.0], "after all tokens the reward is the rollout's own"
    assert first[2] == first[3] > 0.5, "two tokens before the end of a right response"
    assert first == values(places, 8) and all(value * 8 == int(value * 8) for value in first)
    rule = Hand(needs={"continuations"})
    of_groups = groups(rule, rollouts, _bare(rollouts), further={"continuations": values})
    assert of_groups[1].continuations([(0, lengths[4])], 1) == values([(4, lengths[4])], 1) == [1.0]


def _bare(rollouts):
    nothing = torch.zeros_like(rollouts.mask, dtype=torch.float32)
    return Reading(nothing, nothing, None)


# ── Turns ──


def test_turns_are_runs_of_response_tokens():
    assert turn_numbers(torch.tensor([True, True, False, True, False, False, True])).tolist() == [0, 0, 1, 2]
    assert turn_numbers(torch.zeros(3, dtype=torch.bool)).tolist() == []
    mask = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0]])
    rows = of_responses(frozenset({"turns"}), mask.bool(), None, torch.zeros(2, 5, dtype=torch.int64), {})
    assert [row["turns"].tolist() for row in rows] == [[0, 0, 1], [0, 0]]


# ── The collector ──


def test_a_late_need_reaches_the_groups_that_wait_and_none_is_weighed_before():
    rule = Hand(needs={"ref_log_probs", "log_probs"})
    collector = GroupCollector(rule, max_waiting_bytes=0)
    given = {i: torch.full((2,), float(i)) for i in range(4)}
    for batch in ((3, 0), (1, 2)):
        request = CreditRequest(batch, tuple(i // 2 for i in batch), (0.0, 0.0), (False, False), 2)
        collector.add(request, [2, 2], {"log_probs": [given[i] for i in batch]})
    assert not rule.seen
    late = {1: {3: -given[3], 2: -given[2]}, 0: {1: -given[1], 0: -given[0]}}  # in no order
    collector.add_late("ref_log_probs", late)
    collector.take()
    seen = {group.number: group for group in rule.seen}
    for number in (0, 1):
        for row, i in enumerate((2 * number, 2 * number + 1)):
            assert torch.equal(seen[number].ref_log_probs[row], -given[i])
            assert torch.equal(seen[number].log_probs[row], given[i])


def test_the_head_is_given_when_a_group_is_weighed():
    rule, head = Hand(needs={"lm_head", "source_states"}), LMHead(torch.eye(3))
    for most in (0, float("inf")):
        collector = GroupCollector(rule, most, shared={"lm_head": head})
        request = CreditRequest((0, 1), (0, 0), (0.0, 1.0), (False, True), 2)
        collector.add(request, [1, 2], {"source_states": [torch.ones(1, 3), torch.ones(2, 3)]})
        assert collector.take()[0].rollouts == (0, 1) and rule.seen[-1].lm_head is head
    with pytest.raises(KeyError):  # a need that nobody gives is no silent None
        GroupCollector(rule).add(request, [1, 2], {})


# ── In the update ──


class Sees(UpdateRule):
    name = "sees"

    def __init__(self, *needs):
        self.needs, self.given = frozenset(needs), None

    def advantages(self, advantages, entropies, mask, **others):
        self.given = {"entropies": entropies, **others}
        return advantages, {}


@pytest.mark.parametrize("needs", [(), ("entropies",), ("log_probs",), ("entropies", "log_probs")])
def test_an_update_rule_gets_what_it_needs_without_a_gradient(needs):
    rule, values = Sees(*needs), torch.zeros(1, 2, dtype=torch.bfloat16, requires_grad=True)
    checked_advantages(rule, torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool), values, values + 1, values + 2)
    wanted = {"entropies": 0.0} if "entropies" in needs else {}
    wanted |= {"log_probs": 1.0, "old_log_probs": 2.0} if "log_probs" in needs else {}
    given = {name: tensor for name, tensor in rule.given.items() if tensor is not None}
    assert {name: tensor[0, 0].item() for name, tensor in given.items()} == wanted
    assert all(tensor.dtype == torch.float32 and not tensor.requires_grad for tensor in given.values())


# ── What a place cannot give is refused ──


@pytest.mark.parametrize("need", LAB_ALONE)
def test_training_refuses_what_only_the_lab_gives(need, tmp_path, monkeypatch):
    (tmp_path / f"asking_{need}.py").write_text(
        "from openrlhf_shear.credit import CreditRule\n\n\nclass Asking(CreditRule):\n"
        f"    needs = frozenset({{{need!r}}})\n\n    def credit(self, group): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=f"it needs {need}, which only the credit lab gives; use shear-lab"):
        load_rule(CreditSpec(f"asking_{need}:Asking"))


@pytest.mark.parametrize(
    ("trainer", "need"), [("verl", "lm_head"), ("verl", "ref_log_probs"), ("TRL", "continuations")]
)
def test_other_trainers_refuse_what_they_cannot_give(trainer, need):
    with pytest.raises(ValueError, match=f"here: rule needs {need}, which it does not get from {trainer}"):
        rule_of(Hand(needs={need}), "here", trainer)
