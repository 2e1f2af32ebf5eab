"""Credit rules in TRL's GRPO: the weights are `shear_weights`', weights of 1 are TRL's own training bit for bit."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from known import (
    GROUP,
    LOSSES,
    SHEAR,
    KnownShear,
    KnownTrl,
    batch_of,
    expected_weights,
    groups_of,
    policy,
    right,
    states_of,
)
from own_processes import PATIENCE, TWO, said_by
from transformers import GPT2Config, GPT2LMHeadModel

from openrlhf_shear.credit import Credit, CreditRule
from openrlhf_shear.credit.rules.entropy_adv import EntropyAdvRule
from openrlhf_shear.tasks.arithmetic.problems import make_problems

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


class Halving(CreditRule):
    """A user's rule with a knob; `seen` are the groups that it was given."""

    name = "halving"
    needs = frozenset({"log_probs", "entropies", "token_ids", "token_texts"})

    def __init__(self, by=2, needs=None):
        self.by, self.seen = by, []
        self.needs = self.needs if needs is None else needs

    def credit(self, group):
        self.seen.append(group)
        return Credit([torch.full((length,), 1 / self.by) for length in group.lengths], {"by": float(self.by)})


def test_the_weights_are_those_of_shear_weights(trainer):
    made = trainer()
    model = policy()[0]
    batch = batch_of(made)
    base = KnownTrlBatch(trainer)["advantages"]
    correct = [score > 0.5 for score in made._scores.tolist()]
    assert any(len(set(correct[group])) == 2 for group in groups_of(batch))
    mask = batch["completion_mask"].bool()
    for row, expected in enumerate(expected_weights(model, batch, correct)):
        found = batch["advantages"][row, mask[row]]
        assert torch.allclose(found, base[row] * expected, rtol=2e-5, atol=1e-6)
        assert torch.equal(batch["advantages"][row, ~mask[row]], base[row].expand(int((~mask[row]).sum())))
    assert "shear/omega_mean" in made._metrics["train"] and "shear/credit_seconds" in made._metrics["train"]


def KnownTrlBatch(trainer):
    return batch_of(trainer(KnownTrl))


@pytest.mark.parametrize(
    ("loss", "level"), [*((loss, "token") for loss in LOSSES), ("grpo", "sequence"), ("luspo", "sequence")]
)
def test_weights_of_one_give_trls_loss_bit_for_bit(trainer, loss, level):
    """Every loss and its gradients, with a reference model, an entropy bonus and clipping.

    With a ratio a sequence, gradients are sums over tokens in another order.
    """
    settings = {"loss_type": loss, "importance_sampling_level": level, "beta": 0.04, "entropy_coef": 0.01}
    settings |= {"off_policy_mask_threshold": 0.01, "top_entropy_quantile": 0.5}
    plain, ours = trainer(KnownTrl, **settings), trainer(credit="uniform", **settings)
    batch, mine = batch_of(plain), batch_of(ours)
    assert batch["advantages"].shape == (8,) and mine["advantages"].shape == mine["completion_mask"].shape
    moved = {"old_per_token_logps": torch.randn(batch["completion_ids"].shape) - 1}
    plain.current_gradient_accumulation_steps = ours.current_gradient_accumulation_steps = 2
    losses = [
        trainer._compute_loss(trainer.model, inputs | moved) for trainer, inputs in ((plain, batch), (ours, mine))
    ]
    assert torch.equal(*losses) and losses[0] != 0
    for loss in losses:
        loss.backward()
    gradients = zip(plain.model.parameters(), ours.model.parameters(), strict=True)
    same = torch.equal if level == "token" else lambda a, b: torch.allclose(a, b, rtol=1e-4, atol=1e-5)
    assert all(same(a.grad, b.grad) for a, b in gradients)


def formatted(prompts, completions, **_):
    """A reward for the format, which all responses earn."""
    return [0.5] * len(completions)


def test_the_reward_that_decides_correctness_can_be_named_and_a_threshold_below_all_scores_is_told(trainer, caplog):
    both = [right, formatted]
    alike = batch_of(trainer(rewards=both))["advantages"]
    assert all(row.unique().numel() == 1 for row in alike)
    (line,) = [record.getMessage() for record in caplog.records if "correct_threshold" in record.getMessage()]
    assert "the scores 0.5, 1.5 are at least correct_threshold 0.5" in line.replace(": scores", ": the scores")
    caplog.clear()
    named, plain = batch_of(trainer(rewards=both, correct_reward="right")), batch_of(trainer())
    assert torch.allclose(named["advantages"], plain["advantages"], atol=1e-5) and plain["advantages"].std() > 0.1
    assert not any("correct_threshold" in record.getMessage() for record in caplog.records)
    with pytest.raises(ValueError, match="correct_reward must name a reward function: got 'acc'; use one of right, fo"):
        trainer(rewards=both, correct_reward="acc")


@pytest.mark.parametrize("credit", [None, 3, ["shear"], "nowhere:Rule"])
def test_what_is_no_rule_is_refused_in_the_words_of_trl(trainer, credit):
    with pytest.raises(
        ValueError, match=r"^credit (must be a rule or its name|nowhere:Rule: nowhere cannot be imported)"
    ):
        trainer(credit=credit)


def test_a_checkpoint_resumes_with_its_own_credit_rule_alone(trainer):
    trainer(credit="uniform", save_strategy="steps", save_steps=1, max_steps=1).train()
    with pytest.raises(ValueError, match=r"the checkpoint was trained with uniform: got shear/window=16/stride=4; use"):
        trainer(max_steps=2).train(resume_from_checkpoint=True)
    trainer(credit="uniform", max_steps=2).train(resume_from_checkpoint=True)


@pytest.mark.parametrize("settings", [{}, {"num_iterations": 2}, {"steps_per_generation": 4, "max_steps": 4}])
def test_training_with_weights_of_one_is_trls_bit_for_bit(trainer, settings):
    made = []
    for kind in (KnownTrl, KnownShear):
        made.append(trainer(kind, credit="uniform", **settings))  # sets the seed
        made[-1].train()
    logs = [[line.get("loss") for line in trainer.state.log_history] for trainer in made]
    assert logs[0] == logs[1] and any(logs[0])
    assert all(torch.equal(a, b) for a, b in zip(made[0].model.parameters(), made[1].model.parameters(), strict=True))


def test_gradient_accumulation_changes_no_weight_and_sums_to_the_whole_step(trainer):
    small = trainer(per_device_train_batch_size=2, gradient_accumulation_steps=4)
    whole = trainer(per_device_train_batch_size=8, gradient_accumulation_steps=1)
    assert torch.allclose(batch_of(small)["advantages"], batch_of(whole)["advantages"], atol=1e-5)
    for trainer in (small, whole):
        trainer.args.max_steps = 1
        trainer.train()
    for a, b in zip(small.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=3e-4)  # AdamW's first step is of 1e-3, whatever the gradient's size


def gpt2() -> GPT2LMHeadModel:
    """A random GPT-2 with the policy's tokens, and GPT-2's dropout of 0.1 after embeddings, attention and MLP."""
    tokenizer = policy()[1]
    torch.manual_seed(1)
    special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id")}
    sizes = {"vocab_size": len(tokenizer), "n_positions": 512, "n_embd": 64, "n_layer": 2, "n_head": 4}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, **special))


@pytest.mark.parametrize("dropped", ["GPT-2", "LoRA"])
def test_what_a_rule_reads_has_no_dropout(trainer, dropped):
    """States, log-probs and entropies are those of a plain pass in evaluation mode; the training mode comes back."""
    adapters = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.1}
    more = {"model": gpt2()} if dropped == "GPT-2" else {"peft": pytest.importorskip("peft").LoraConfig(**adapters)}
    prompts = [problem.prompt for problem in make_problems(32, 10_000)]
    more["prompts"] = [prompt for prompt in prompts if len(prompt) == len(prompts[0])]  # TRL gives padding a position
    made = trainer(credit=Halving(needs=frozenset({"hidden_states", "log_probs", "entropies"})), **more)
    for name, parameter in made.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    batch = batch_of(made)
    assert all(module.training for module in made.model.modules())
    dropout = [module.p for module in made.model.modules() if isinstance(module, torch.nn.Dropout)]
    assert dropout and set(dropout) == {0.1}
    plain = made.model.eval()  # not a copy: TRL's patched forward leads from a copy back to the model
    seen = sorted(made.rule.seen, key=lambda group: group.number)
    rows = zip(states_of(plain, batch), batch["completion_ids"], batch["completion_mask"].bool(), strict=True)
    for row, (states, ids, mask) in enumerate(rows):
        group, at = seen[row // GROUP], row % GROUP
        assert torch.allclose(group.hidden_states[at], states, atol=1e-4)
        log_all = plain.get_output_embeddings()(states).double().log_softmax(-1)[:-1]  # of the tokens after the first
        assert torch.allclose(group.entropies[at][1:].double(), -(log_all.exp() * log_all).sum(-1), atol=1e-4)
        chosen = log_all.gather(1, ids[mask][1:, None])[:, 0]
        assert torch.allclose(group.log_probs[at][1:].double(), chosen, atol=1e-4)


def test_peft_states_are_those_with_the_adapters(trainer):
    peft = pytest.importorskip("peft")
    made = trainer(peft=peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"]))
    for name, parameter in made.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    batch = batch_of(made)
    merged = copy.deepcopy(made.model).merge_and_unload().eval()
    correct = [score > 0.5 for score in made._scores.tolist()]
    base = KnownTrlBatch(trainer)["advantages"]
    mask = batch["completion_mask"].bool()
    expected, without = expected_weights(merged, batch, correct), expected_weights(policy()[0], batch, correct)
    assert not torch.allclose(torch.cat(expected), torch.cat(without), rtol=1e-3)
    for row, weight in enumerate(expected):
        assert torch.allclose(batch["advantages"][row, mask[row]], base[row] * weight, rtol=1e-4, atol=1e-5)
    made.train()  # with the reference model that TRL makes of the same weights
    assert any("shear/omega_mean" in line for line in made.state.log_history)


def test_a_rule_of_a_users_by_the_same_grammar(trainer, monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    made = trainer(credit="test_trl:Halving/by=4")
    batch = batch_of(made)
    mask = batch["completion_mask"].bool()
    base = KnownTrlBatch(trainer)["advantages"][:, None].expand(mask.shape)
    assert torch.equal(batch["advantages"][mask], base[mask] / 4)
    assert made._metrics["train"]["halving/by"] == [4.0]
    first, second = sorted(made.rule.seen, key=lambda group: group.number)
    assert first.step == 1 and first.lengths == tuple(mask[:GROUP].sum(1).tolist())
    assert "".join(first.token_texts[0]) == policy()[1].decode(batch["completion_ids"][0][mask[0]])
    assert all(
        torch.equal(a, b[m])
        for a, b, m in zip(second.token_ids, batch["completion_ids"][GROUP:], mask[GROUP:], strict=True)
    )
    logits = policy()[0](input_ids=torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)[:1]).logits.float()
    log_all = logits[0, batch["prompt_ids"].shape[1] - 1 : -1].log_softmax(-1)
    if batch["prompt_mask"][0].all():
        chosen = log_all.gather(1, batch["completion_ids"][0][:, None])[:, 0][mask[0]]
        assert torch.allclose(first.log_probs[0], chosen, atol=1e-4)
        entropies = -(log_all.exp() * log_all).sum(-1)[mask[0]]
        assert torch.allclose(first.entropies[0], entropies, atol=1e-4)


def test_a_rule_gets_source_states_the_head_and_the_reference_model(trainer):
    needs = {"source_states", "lm_head", "log_probs", "ref_log_probs", "turns", "token_ids"}
    made = trainer(credit=Halving(needs=frozenset(needs)), beta=0.1)
    with torch.no_grad():  # the reference model differs from the policy
        made.ref_model.get_output_embeddings().weight.mul_(1.5)
    batch = batch_of(made)
    states, reference = states_of(policy()[0], batch), copy.deepcopy(policy()[0])
    with torch.no_grad():
        reference.get_output_embeddings().weight.mul_(1.5)
    for group in made.rule.seen:
        for i, ids in enumerate(group.token_ids):
            row, places = GROUP * group.number + i, torch.arange(len(ids))
            prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()]
            torch.testing.assert_close(group.source_states[i][1:], states[row][:-1], atol=1e-4, rtol=0)
            drawn = group.lm_head.log_probs(group.source_states[i])[places, ids]
            torch.testing.assert_close(drawn, group.log_probs[i], atol=1e-4, rtol=0)
            with torch.no_grad():
                logits = reference(torch.cat([prompt, ids])[None]).logits[0, len(prompt) - 1 : -1].double()
            expected = logits.log_softmax(-1)[places, ids]
            torch.testing.assert_close(group.ref_log_probs[i].double(), expected, atol=1e-4, rtol=0)
            assert (expected - group.log_probs[i]).abs().max() > 0.01 and not group.turns[i].any()


def test_a_rule_that_needs_a_reference_model_needs_beta(trainer):
    with pytest.raises(ValueError, match="halving needs ref_log_probs, and TRL has a reference model only with beta"):
        trainer(credit=Halving(needs=frozenset({"ref_log_probs"})))


def test_an_update_rule_acts_in_every_loss_on_its_forward_pass(trainer):
    made, plain = trainer(credit="entropy_adv/alpha=0.5", num_iterations=2), trainer(KnownTrl)
    batch, rule = batch_of(made), EntropyAdvRule(made.rule.config)
    assert batch["advantages"].dim() == 1 and rule.config.alpha == 0.5
    made.current_gradient_accumulation_steps = plain.current_gradient_accumulation_steps = 2
    keep = batch["completion_ids"].shape[1]
    inputs = [torch.cat([batch[f"{a}_{b}"] for a in ("prompt", "completion")], 1) for b in ("ids", "mask")]
    _, entropies, _ = plain._get_per_token_logps_and_entropies(made.model, *inputs, keep, compute_entropy=True)
    base = batch["advantages"][:, None].expand_as(entropies)
    shaped, _ = rule.advantages(base, entropies.detach(), batch["completion_mask"].bool())
    assert not torch.equal(shaped, base)
    wanted = plain._compute_loss(made.model, batch | {"advantages": shaped})
    assert torch.equal(made._compute_loss(made.model, batch), wanted)
    assert batch["advantages"].dim() == 1 and "entropy_adv/bonus" in made._metrics["train"]
    made.train()
    assert any("entropy_adv/capped" in line for line in made.state.log_history)


def test_a_rollout_without_a_reward_weighs_one_and_opposes_nobody(trainer):
    def partly(prompts, completions, **_):
        return [None if row == 0 else value for row, value in enumerate(right(prompts, completions))]

    made = trainer(rewards=partly)
    batch = batch_of(made)
    correct = [None, *(score > 0.5 for score in made._scores.tolist()[1:])]
    assert made._scores[0].isnan() and not batch["advantages"][0].any()
    expected = expected_weights(policy()[0], batch, correct)
    base = batch_of(trainer(KnownTrl, rewards=partly))["advantages"]
    mask = batch["completion_mask"].bool()
    for row, weight in enumerate(expected):
        assert torch.allclose(batch["advantages"][row, mask[row]], base[row] * weight, rtol=2e-5, atol=1e-6)


def test_tokens_that_a_tool_wrote_are_no_part_of_a_rollout(trainer):
    class Tools(KnownShear):
        def tool_masks(self, ids):
            return [[0 if 10 <= t < 20 else 1 for t in range(len(row))] for row in ids]

    made = trainer(Tools, credit=Halving())
    batch = batch_of(made)
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    first = min(made.rule.seen, key=lambda group: group.number)
    assert first.lengths == tuple(mask[:GROUP].sum(1).tolist())
    assert torch.equal(batch["advantages"][0, 10:20] / 2, batch["advantages"][0, :10])


def test_evaluation_is_trls(trainer):
    made = trainer()
    made.model.eval()
    inputs = next(iter(made.get_train_dataloader()))
    assert made._generate_and_score_completions(inputs)["advantages"].dim() == 1


@pytest.mark.parametrize(
    ("credit", "said"),
    [
        ("sheer", "no rule is called 'sheer' \\(did you mean shear\\?\\)"),
        ("shear/windw=3", "no knob windw; shear has window"),
        ("shear/window=0", "shear.window must be at least 1: got 0"),
        ("prm_reshape", "credit: prm_reshape needs a process reward model, which only the cluster fork runs"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_loads(trainer, credit, said):
    with pytest.raises(ValueError, match=said):
        trainer(credit=credit)


@pytest.mark.parametrize("rows", [2, 4])
def test_two_processes(rows, tmp_path):
    """Over gloo: groups of four on one process, and cut between two, weigh as `shear_weights` says."""
    said = said_by(tmp_path, HERE / "two_processes.py", rows, tmp_path, before=TWO)
    assert said.count("as shear_weights says") == 2, said[-3000:]


def test_the_example_trains(tmp_path):
    line = ["--steps", "1", "--prompts", "2", "--heldout", "4", "--output", str(tmp_path), "--credit", SHEAR]
    script = str(ROOT / "examples/trl/train_arithmetic.py")
    done = subprocess.run([sys.executable, script, *line], capture_output=True, text=True, timeout=300 * PATIENCE)
    assert done.returncode == 0 and f"{SHEAR}: " in done.stdout and "after 1 steps" in done.stdout, done.stderr[-2000:]
