"""LoRA on two ZeRO-3 ranks with an engine, and a whole training: adapters alone learn, vLLM follows."""

import itertools

import pytest
import torch

from .conftest import ARITHMETIC_REWARD, build_engines, build_group, credited_step, weights_of
from .test_engines import LOGPROB_NOISE, actor_logprobs, engine_logprobs, fixed_sequences
from .test_experience import OMEGA_NOISE

# Nats a token, mean of the actor's log-probs minus the engine's, whose sums are ordered differently. Measured below:
# 0.0004 at most; 0.08 in the second step where engines are sent the base model's weights.
VLLM_KL = 0.01
pytestmark = pytest.mark.long
WORDS = ("--ds.lora.rank", "8", "--ds.lora.alpha", "16")


@pytest.fixture(scope="module")
def engine(cluster, arguments):
    args = arguments()
    (made,) = build_engines(args, 1, enable_prefix_caching=False)
    yield made
    cluster.kill(made)


@pytest.fixture(scope="module")
def trained(cluster, arguments, actor_group, engine, maker, rollouts, tmp_path_factory):
    """Two ranks after two updates, and their weights and log-probs of fixed sequences before.

    The second has 12 rollouts for batches of 8.
    """
    folder = tmp_path_factory.mktemp("lora")
    words = ("--actor.num_gpus_per_node", "2", "--ds.zero_stage", "3", "--actor.adam.lr", "1e-2")
    args = arguments(*WORDS, *words, "--ckpt.output_dir", str(folder / "out"), "--ckpt.path", str(folder / "ckpt"))
    group, strategy = actor_group(args, [engine])
    sequences = fixed_sequences(rollouts(1))
    before = whole_weights(cluster, group), actor_logprobs(cluster, group, sequences)
    statuses = []
    for groups in (4, 3):
        experiences = maker(group, strategy).make_experience_batch(rollouts(groups))
        cluster.get(group.async_run_method_batch(method_name="append", experience=experiences))
        statuses += cluster.get(group.async_run_method("fit", kl_ctl=0.0))
        assert sum(cluster.get(group.async_run_method("take_trained"))) == 4 * groups
    return group, strategy, before, statuses


def whole_weights(cluster, group) -> dict[str, torch.Tensor]:
    """The policy's parameters as they are, under PEFT's names."""

    def of(actor):
        from openrlhf_shear.train.update.lora import gathering, whole

        return whole(actor.actor.model.module, gathering(True))

    return cluster.get([actor.__ray_call__.remote(of) for actor in group.actors])[0]


def by_hand(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """W + (16 / 8) B A in float64, from PEFT's names alone."""
    expected = {}
    for name, value in weights.items():
        layer, wrapped, kind = name.rpartition(".base_layer.")
        if ".lora_" in name:
            continue
        merged = value.double()
        if wrapped and kind == "weight":
            a, b = (weights[f"{layer}.lora_{matrix}.default.weight"].double() for matrix in "AB")
            merged = merged + 2 * b @ a
        expected[name.removeprefix("base_model.model.").replace(".base_layer", "")] = merged
    return expected


def test_adapters_alone_move(cluster, trained):
    group, _, (before, _), statuses = trained
    after = whole_weights(cluster, group)
    assert all(status["update/moved"] == 1.0 and status["update/optimizer_steps"] > 0 for status in statuses)
    assert after.keys() == before.keys() and len(before) > 2 * 21
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert moved == {name for name in after if ".lora_" in name}


def test_the_engine_has_the_merged_weights(cluster, trained, engine, rollouts):
    group, _, (_, base), _ = trained
    sequences = fixed_sequences(rollouts(1))
    own = whole_weights(cluster, group)
    expected = actor_logprobs(cluster, group, sequences)  # measured: the engine's differ by 0.026, the base's by 1.5
    assert (expected - base).abs().mean() > 5 * LOGPROB_NOISE, "the updates must move the policy, or this shows nothing"
    for _ in range(2):  # the second time, vLLM has repacked them already
        cluster.get(group.async_run_method("broadcast_to_vllm"))
        assert (engine_logprobs(cluster, engine, sequences) - expected).abs().mean() < LOGPROB_NOISE
    after = whole_weights(cluster, group)
    assert after.keys() == own.keys() and all(torch.equal(after[name], value) for name, value in own.items())


def test_upstreams_way_to_a_gpu_gets_them_too(cluster, trained):
    """`ActorPPOTrainer.broadcast_to_vllm` on both ranks, with a recorder in place of NCCL and the engines."""
    group, *_ = trained

    def sent(actor):
        from types import SimpleNamespace as Section

        from openrlhf.trainer.ray import ppo_actor

        from openrlhf_shear.train.update.lora import merged

        names, values = [], {}
        trainer, get = actor.trainer, ppo_actor.ray.get
        announce = Section(remote=lambda name, dtype, shape, empty_cache: names.append((name, dtype, tuple(shape))))

        def keep(tensor, src, stream):
            assert names[-1][1:] == (tensor.dtype, tuple(tensor.shape))
            values[names[-1][0]] = tensor.clone()

        trainer.vllm_engines, trainer._model_update_group = [Section(update_weight=announce)], Section(broadcast=keep)
        trainer.use_cuda_ipc, ppo_actor.ray.get = False, lambda refs: None
        try:
            with merged(actor.actor.model.module):
                trainer.broadcast_to_vllm()
        finally:
            ppo_actor.ray.get = get
        return values

    first, other = cluster.get([actor.__ray_call__.remote(sent) for actor in group.actors])
    expected = by_hand(whole_weights(cluster, group))
    assert first.keys() == expected.keys() and other == {}
    for name, value in first.items():
        torch.testing.assert_close(value.double(), expected[name], rtol=2**-8, atol=1e-7)


def test_shear_weighs_by_the_states_of_the_adapted_policy(cluster, trained, plain, maker, rollouts):
    from openrlhf_shear.credit import shear_weights

    group, strategy, *_ = trained
    ours, size = maker(group, strategy), 4
    samples = ours.split_rollout_samples(rollouts(4))
    states = [cluster.get(ref) for ref in group.async_hidden_states(samples)]
    got, of_base = (weights_of(credited_step(making, rollouts(4))) for making in (ours, maker(*plain)))
    for start in range(0, 16, size):
        members = range(start, start + size)
        result = shear_weights([states[i] for i in members], [i % 2 == 0 for i in members], strategy.args.credit.config)
        for i, weights in zip(members, result.weights, strict=True):
            torch.testing.assert_close(got[i], weights, atol=1e-6, rtol=0)
    differences = [(got[i] - of_base[i]).abs().max().item() for i in got]
    assert max(differences) > 5 * OMEGA_NOISE, "the base model's would be others"


def test_what_is_saved_is_the_policy_and_its_checkpoint_goes_on(cluster, trained, policy):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from openrlhf_shear.train.carriers import Save

    group, strategy, *_ = trained
    args, own = strategy.args, whole_weights(cluster, group)
    cluster.get(group.async_run_method("save_model"))
    saved = AutoModelForCausalLM.from_pretrained(args.ckpt.output_dir, dtype=torch.bfloat16).state_dict()
    for name, value in by_hand(own).items():
        torch.testing.assert_close(saved[name].double(), value, rtol=2**-8, atol=1e-7)
    base = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.bfloat16)
    adapted = PeftModel.from_pretrained(base, f"{args.ckpt.output_dir}/adapter").state_dict()
    assert all(torch.equal(adapted[name], value.float()) for name, value in own.items() if ".lora_" in name)

    what = Save(1, checkpoint=True, model=False)
    cluster.get(group.async_run_method("save_checkpoint", what, {"step": 1}))
    group.stop()
    args.ckpt.load_enable = True
    again, _ = build_group(args, [])
    resumed = whole_weights(cluster, again)
    assert resumed.keys() == own.keys() and all(torch.equal(resumed[name], value) for name, value in own.items())
    again.stop()


def test_a_training_with_adapters_moves_the_adapted_weights_alone(train, policy, tmp_path):
    """Two steps, each of which saves the model, too."""
    from safetensors.torch import load_file

    words = (*WORDS, "--reward.remote_url", ARITHMETIC_REWARD, "--ckpt.save_steps", "1", "--ckpt.save_hf")
    words += ("--actor.adam.lr", "1e-2", "--rollout.temperature", "0.8", "--actor.lr_scheduler", "constant")
    _, scalars = train(*words, "--actor.gradient_checkpointing_enable", "--ds.lora.dropout", "0.05")
    assert scalars["train/ledger/trained"] == [32.0, 64.0]
    kl, mean, largest = (scalars[name] for name in ("train/vllm_kl", "train/vllm_gap", "train/vllm_gap_max"))
    assert max(map(abs, kl)) < VLLM_KL, kl
    assert len(kl) == 2 and all(abs(a) <= b <= c for a, b, c in zip(kl, mean, largest, strict=True))
    base = load_file(policy / "model.safetensors")
    saved = [load_file(tmp_path / f"ckpt/global_step{step}_hf/model.safetensors") for step in (1, 2)]
    assert all(weights.keys() == base.keys() for weights in saved)
    for before, after in itertools.pairwise([base, *saved]):
        moved = {name for name in after if not torch.equal(after[name], before[name])}
        assert moved == {name for name in after if name.endswith("_proj.weight")}
