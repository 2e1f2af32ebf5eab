"""Credit rules on real actors: the process reward model, and the advantages in the update.

Training steps: `shear` and `entropy_adv` in test_whole_run.py, a user's rule in test_job_submit.py, `group_norm` and
`pure` in test_recipes.py.
"""

import shutil
from itertools import chain

import numpy as np
import pytest
import torch
from cases import table

from openrlhf_shear.config import PrmConfig
from openrlhf_shear.credit import CreditRule
from openrlhf_shear.credit.captured import LMHead
from openrlhf_shear.credit.groups import GroupCollector
from openrlhf_shear.credit.registry import load_rule
from openrlhf_shear.credit.rule import RolloutGroup

from .conftest import advantages_by_rollout, reaching_the_loss

# The policy is bf16, and each pass rounds differently: see test_experience.py.
NOISE = 0.02


def flat(lists: list[list]) -> list:
    return list(chain.from_iterable(lists))


@pytest.fixture(scope="module")
def other_policy(policy, tmp_path_factory):
    """The folder of another policy: the built-in one, its tied embeddings half as large again."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("reference") / "policy"
    shutil.copytree(policy, folder)
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.bfloat16)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1.5)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reference(cluster, arguments, other_policy):
    """One rank with the other policy as reference model."""
    from openrlhf.trainer.ray import launcher
    from openrlhf.utils import get_strategy

    group = launcher.RayActorGroup(1, 1, launcher.ReferenceModelActor, num_gpus_per_actor=0.2, duplicate_actors=1)
    cluster.get(group.async_init_model_from_pretrained(get_strategy(arguments()), str(other_policy)))
    yield group
    for actor in group._actor_handlers:
        cluster.kill(actor)


def readings(cluster, policy, samples):
    """Log-prob, entropy and source state of each response token, with transformers alone, one rollout at a time.

    The first two are float32. The LM head follows the rollouts.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.bfloat16)
    found = []
    for sample in samples:
        with torch.no_grad():
            output = model(sample.sequences, output_hidden_states=True)
        logits = output.logits[0, :-1].float().log_softmax(-1)
        at = sample.action_mask[0].bool()
        offset = sample.sequences.shape[1] - len(at)
        of_token = logits[torch.arange(len(logits)), sample.sequences[0, 1:]]
        entropy = -(logits.exp() * logits).sum(-1)
        states = output.hidden_states[-1][0, :-1]  # after the final norm
        found.append(tuple(values[offset - 1 :][at] for values in (of_token, entropy, states)))
    return found, LMHead(model.lm_head.weight.detach())


def group_norm(rewards) -> np.ndarray:
    rewards = np.array(rewards, dtype=np.float64)
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-9)


@pytest.fixture(scope="module")
def with_rule(cluster, plain, arguments, tiny_prm):
    """A function: estimator and flags -> the one-rank group with this rule, its strategy, the rule."""
    from openrlhf.utils import get_strategy

    group, strategy = plain

    def change(rule):
        def of(actor):
            actor._rule = rule
            shared = {"lm_head": actor._lm_head()} if "lm_head" in rule.needs else {}
            actor._collector = GroupCollector(rule, shared=shared) if isinstance(rule, CreditRule) else None

        cluster.get([actor.__ray_call__.remote(of) for actor in group.actors])

    def build(*words: str):
        given = arguments("--algo.advantage.estimator", *words, "--prm.model_name_or_path", str(tiny_prm))
        rule = load_rule(given.credit)
        change(rule)
        return group, get_strategy(given), rule

    yield build
    change(load_rule(strategy.args.credit))


@pytest.fixture(scope="module")
def tiny_prm(tmp_path_factory):
    from openrlhf_shear.tasks.arithmetic.prm import write_prm

    return write_prm(tmp_path_factory.mktemp("prm") / "prm")


@pytest.fixture(scope="module")
def prm(cluster, arguments, tiny_prm):
    """The tiny process reward model on two separate ranks, under ZeRO-3, one rollout a pass."""
    import ray
    from openrlhf.utils import get_strategy

    from openrlhf_shear.train.experience.prm import PrmActor, PrmGroup

    group = PrmGroup(1, 2, ray.remote(num_gpus=1)(PrmActor))
    ring = ("--actor.num_gpus_per_node", "2", "--ds.ring_attn_size", "2")  # of the policy, which does not matter here
    strategy = get_strategy(arguments("--ds.zero_stage", "3", *ring))
    config = PrmConfig(model_name_or_path=str(tiny_prm), micro_batch_size=1, max_len=400)
    cluster.get(group.async_init_model_from_pretrained(strategy, config))
    yield group
    group.stop()


@pytest.fixture(scope="module")
def scorer(prm, tokenizer):
    from openrlhf_shear.train.experience.prm import StepScorer

    return StepScorer(prm, PrmConfig(separator=";"), tokenizer, {})


@pytest.mark.parametrize("rollouts", [1, 5])
def test_the_process_reward_model_on_two_ranks_gives_the_scores_of_one(prm, tiny_prm, rollouts):
    """1 rollout leaves a rank without any; 5, one of them too long, give the ranks different numbers of passes."""
    from openrlhf_shear.credit.prm.model import collate, load_prm
    from openrlhf_shear.credit.prm.steps import load_encoder

    problems = ["1 + 1?", "Sum to 100.", "", "Prove it.", "1 + 1?"][:rollouts]
    steps = [["One and one.", "So 2."], ["x" * 90], ["a"], ["b", "c " * 200, "d"], ["One and one.", "So 3."]][:rollouts]
    encoder = load_encoder(PrmConfig(model_name_or_path=str(tiny_prm), max_len=400))
    model = load_prm(str(tiny_prm), torch.bfloat16, "sdpa")
    alone = [encoder.encode(problem, texts) for problem, texts in zip(problems, steps, strict=True)]
    expected = [model(**collate([conversation], encoder.pad_id, "cpu")).tolist() for conversation in alone]
    got = prm.score(problems, steps)
    assert [len(scores) for scores in got] == [2, 1, 1, 1, 2][:rollouts]
    # the same bfloat16 passes, one rollout each
    assert flat(got) == pytest.approx(flat(expected), abs=1e-6)
    if rollouts > 1:
        assert max(flat(got)) - min(flat(got)) > 0.01, "the scores must differ, or comparing shows nothing"


METHODS = table("distributed", "METHODS")


@pytest.mark.parametrize("method", METHODS)
def test_the_update_gets_what_the_rule_makes(cluster, policy, with_rule, maker, rollouts, scorer, request, method):
    group, strategy, rule = with_rule(*METHODS[method])
    samples, size = rollouts(4), 4
    needs = getattr(rule, "needs", ())
    given = {"prm_scores": scorer(samples)} if "prm_scores" in needs else {}
    if "hidden_states" in needs:
        given["hidden_states"] = cluster.get(group.async_hidden_states(samples))
    rows, head = readings(cluster, policy, samples)
    token_log_probs, entropies, sources = zip(*rows, strict=True)
    if "source_states" in needs:
        given["source_states"] = sources
    if "log_probs" in needs:
        given["log_probs"] = token_log_probs
    if "entropies" in needs:
        given["entropies"] = entropies
    models = {}
    if "ref_log_probs" in needs:
        models["reference"] = request.getfixturevalue("reference")
        of_reference, _ = readings(cluster, request.getfixturevalue("other_policy"), samples)
        given["ref_log_probs"], _, _ = zip(*of_reference, strict=True)
    if "token_ids" in needs:
        given["token_ids"] = [sample.sequences[:, 1:][:, -sample.action_mask.shape[1] :][sample.action_mask.bool()]
                              for sample in samples]  # fmt: skip
    if "prm_scores" in given:
        given["prm_scores"] = [scores for (scores,) in given["prm_scores"]]

    expected, unclear = [], []
    for start in range(0, len(samples), size):
        members = range(start, start + size)
        rewards = tuple(samples[i].rewards.item() for i in members)
        lengths = tuple(int(samples[i].action_mask.sum()) for i in members)
        base = [np.full(n, a) for n, a in zip(lengths, group_norm(rewards), strict=True)]
        if method == "entropy_adv":
            bonus = [np.minimum(0.4 * entropies[i].double().numpy(), abs(base[i - start]) / 2) for i in members]
            expected += [a + more for a, more in zip(base, bonus, strict=True)]
            continue
        tensors = {name: tuple(values[i] for i in members) for name, values in given.items()}
        shared = {"lm_head": head} if "lm_head" in needs else {}
        whole = RolloutGroup(0, rewards, tuple(r > 0.5 for r in rewards), lengths, **tensors, **shared)
        credit = rule.credit(whole)
        if method == "entropy_mask":  # noise decides about tokens at the threshold
            unclear += [(entropies[i] - credit.metrics["threshold"]).abs().numpy() < NOISE for i in members]
        if method == "nthr":  # noise decides about tokens at the threshold
            right, wrong = ([i for i, outcome in enumerate(whole.correct) if outcome is side] for side in (True, False))
            scores, tau = rule.scores(whole, right, wrong)
            unclear += [((scores[i] - tau).abs() < NOISE * scores[i].abs().max()).numpy() for i in range(size)]
        if rule.makes_advantages:
            expected += credit.advantages
            continue
        weights = [w.double().numpy() for w in credit.weights]
        negative = [w.double().numpy() for w in credit.negative_weights or credit.weights]
        expected += [a * np.where(a < 0, n, w) for a, w, n in zip(base, weights, negative, strict=True)]
    if method == "pure":
        expected = rule.over_batch(expected)

    fresh = rollouts(4)
    if method == "entropy_adv":  # it acts later
        experiences = maker(group, strategy, upstream=True).make_experience_batch(fresh)
    else:
        ours = maker(group, strategy, step_scorer=scorer if "prm_scores" in needs else None, **models)
        experiences = ours.make_experience_batch(fresh)
        made = advantages_by_rollout(experiences)
        if method == "prm_reshape":
            assert 4 <= ours.credit_metrics["prm/steps_per_rollout"] <= 12
            assert 0 <= ours.credit_metrics["prm/score_mean"] <= 1 >= ours.credit_metrics["prm_reshape/weight_max"]
        for i, values in enumerate(expected):
            clear = ~unclear[i] if unclear else slice(None)
            np.testing.assert_allclose(made[i].double().numpy()[clear], np.asarray(values)[clear], atol=NOISE)
        assert not unclear or np.concatenate(unclear).mean() < 0.1, "the rest must be most of the tokens"
    (seen,), _ = reaching_the_loss(group, experiences)
    assert len(seen) == len(expected)
    if method == "entropy_adv":
        for row in seen:
            close = [i for i, e in enumerate(expected) if len(e) == len(row) and np.abs(e - row).max() < NOISE]
            assert close
            expected.pop(close[0])
    else:
        assert sorted(seen) == sorted(values.tolist() for values in made.values()), "to the last bit"


def test_fipo_takes_the_ratio_of_the_update(cluster, with_rule, maker, rollouts):
    """Old log-probs are moved, as if the policy had changed; factors follow from what the loss is called with."""
    knobs = ("--fipo.half_life", "4", "--fipo.clip_low", "0.5", "--fipo.clip_high", "3", "--fipo.safety", "4")
    group, strategy, _ = with_rule("fipo", *knobs)
    experiences = maker(group, strategy, upstream=True).make_experience_batch(rollouts(4))
    generator = torch.Generator().manual_seed(0)
    base = [a[mask.bool()][0].item() for e in experiences for a, mask in zip(e.advantages, e.action_mask, strict=True)]
    for experience in experiences:
        experience.action_log_probs -= torch.randn(experience.action_log_probs.shape, generator=generator)

    def fit(actor):
        seen = []

        def keep(loss, args, kwargs, output):
            seen.extend(zip(*(rows.detach().double() for rows in args[:3]), kwargs["action_mask"].bool(), strict=True))

        handle = actor.trainer.actor_loss_fn.register_forward_hook(keep, with_kwargs=True)
        status = actor.fit(kl_ctl=0.0)
        handle.remove()
        return seen, status

    cluster.get(group.async_run_method_batch(method_name="append", experience=experiences))
    ((seen, status),) = cluster.get([actor.__ray_call__.remote(fit) for actor in group.actors])
    plain = []
    for new, old, shaped, mask in seen:
        change = [
            (new[t] - old[t]).item() if mask[t] and new[t] - old[t] <= np.log(10) else 0.0 for t in range(len(new))
        ]
        own = []
        for t in mask.nonzero().flatten().tolist():
            future = sum(0.5 ** ((k - t) / 4) * change[k] for k in range(t, len(change)))
            factor = min(max(np.exp(future), 0.5), 4.0)
            if shaped[t] < 0 and new[t] - old[t] > np.log(4):
                factor = min(max(factor, 0.8), 1.0)
            own.append(shaped[t].item() / factor)
        assert own == pytest.approx([own[0]] * len(own), abs=1e-5), "one advantage a rollout, before the factors"
        plain.append(own[0])
    assert sorted(plain) == pytest.approx(sorted(base), abs=1e-5)
    assert 0.5 < status["fipo/weight"] < 4 and status["fipo/weight"] != 1 and status["fipo/unsafe"] > 0


@pytest.mark.parametrize("mode", ["fixed", "dynamic"])
def test_uniform_is_grpo_bit_for_bit(with_rule, maker, rollouts, mode):
    group, strategy, _ = with_rule("uniform")
    strategy.args.train.dynamic_batch_enable = mode == "dynamic"
    expected = advantages_by_rollout(maker(group, strategy, upstream=True).make_experience_batch(rollouts(5)))
    got = advantages_by_rollout(maker(group, strategy).make_experience_batch(rollouts(5)))
    assert got.keys() == expected.keys() and any(bool(a.any()) for a in expected.values())
    assert all(torch.equal(got[i], expected[i]) for i in expected)


def test_failed_rewards_have_no_part_in_pure(with_rule, maker, rollouts, scorer):
    group, strategy, _ = with_rule("pure")
    samples = rollouts(2)
    for i, sample in enumerate(samples):
        sample.info["reward_failed"] = torch.tensor([float(i == 1)])
    experiences = maker(group, strategy, step_scorer=scorer).make_experience_batch(samples)
    got = advantages_by_rollout(experiences)
    assert not got[1].any()
    rest = torch.cat([values for i, values in got.items() if i != 1])
    assert rest.mean().item() == pytest.approx(0, abs=1e-5) and rest.var().item() == pytest.approx(1, abs=1e-4)
