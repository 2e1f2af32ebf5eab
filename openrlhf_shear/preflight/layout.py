"""GPUs, batches, optimizers and adapters: the default placement of models, and checks of layouts.

Refused are layouts that OpenRLHF, Ray or DeepSpeed reject, or in which ranks deadlock. So are optimizers that would not
do what their names say, and adapters that cannot be merged for vLLM.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec

from openrlhf_shear.config.refusal import Finding, Findings, Note, did_you_mean, refusal, refuse
from openrlhf_shear.doctor import gpu
from openrlhf_shear.line.run import Run, placement_flags, used_models
from openrlhf_shear.preflight.models import ModelFiles, Models, linear_layers
from openrlhf_shear.preflight.resources import own_ray

_SHARING = ("train.colocate_all", "train.colocate_actor_ref", "train.colocate_critic_reward", "train.async_enable")
_SLEEP = ("vllm.enable_sleep", "ds.enable_sleep")
_WORLD = ("num_nodes", "num_gpus_per_node")
_UPSTREAM = 8  # GPUs assumed on an unseen node, as in OpenRLHF
_MERGED = "whose adapters are not merged for vLLM"
_EMBEDDINGS, _HEADS = {"embed_tokens", "embed_in", "wte", "word_embeddings"}, {"lm_head", "embed_out"}
KL_LOSS = "--algo.kl.use_loss --algo.kl.estimator k3"


def place(
    flags: Mapping[str, object],
    set_flags: Collection[str],
    cluster_gpus: Callable[[], list[int]],
    findings: Findings,
) -> dict[str, object]:
    """Return the default placement of the models that the command line leaves open, and note it.

    `cluster_gpus` returns the GPUs of each node of the Ray cluster at RAY_ADDRESS, which a run with a private Ray never
    asks.
    """
    if all(f"{model}.num_gpus_per_node" in set_flags for model in used_models(flags)):
        return {}
    gpus = [] if own_ray() else cluster_gpus()
    chosen = default_placement(flags, set_flags, *shape(flags["device"], flags["device_memory"], gpus))
    if "actor.num_gpus_per_node" in chosen:  # else other models just follow the actor
        findings.notes.append(Note(f"default placement of the models: {' '.join(placement_words(chosen))}", "Info"))
    return chosen


def shape(device: str, device_memory: float, cluster: Sequence[int] = ()) -> tuple[int, int, bool]:
    """Return the number of nodes, the GPUs per node, and whether they are logical GPUs of a CPU machine.

    They are those of the cluster, else of this machine. A plan for GPUs elsewhere (`--device_memory`) gets a node with
    8 GPUs.
    """
    if cluster:
        return len(cluster), min(cluster), device == "cpu"
    seen = len(gpu.visible())
    if device != "cpu" and (seen or device_memory or device == "cuda"):
        return 1, seen or _UPSTREAM, False
    return 1, 1, True


def default_placement(
    flags: Mapping[str, object], set_flags: Collection[str], nodes: int, gpus: int, on_cpu: bool
) -> dict[str, object]:
    """Return values for the placement flags that the command line does not set.

    Without any placement flag, all models share all GPUs and take turns. Otherwise other models get the actor's layout.

    Args:
        set_flags: the flags of the command line, dotted names.
        nodes: nodes with GPUs.
        gpus: GPUs of each node; logical GPUs on a CPU machine.
        on_cpu: there are no GPUs, so nothing can sleep.
    """
    models, chosen = used_models(flags), {}
    decided = {*_SHARING, "vllm.num_engines", *placement_flags(flags)}
    if not decided.intersection(set_flags):
        engine = flags["vllm.tensor_parallel_size"]
        chosen = {"train.colocate_all": True, "vllm.num_engines": max(1, nodes * gpus // engine)}
        chosen |= dict.fromkeys(() if on_cpu else _SLEEP, True)
        chosen |= {"actor.num_nodes": nodes} if nodes > 1 else {}
    if "actor.num_gpus_per_node" not in set_flags:
        chosen["actor.num_gpus_per_node"] = gpus
    of_actor = {name: chosen.get(f"actor.{name}", flags[f"actor.{name}"]) for name in _WORLD}
    chosen |= {f"{model}.{name}": of_actor[name] for model in models[1:] for name in _WORLD}
    return {flag: value for flag, value in chosen.items() if flag not in set_flags and flags[flag] != value}


def placement_words(chosen: Mapping[str, object]) -> list[str]:
    """Return placement flags as words of a command line."""
    return [word for flag, value in chosen.items() for word in (f"--{flag}", *([] if value is True else [f"{value}"]))]


def placement(run: Run) -> Iterator[Finding]:
    together, critic = run.train.colocate_all, run.estimator == "gae"
    for model, used in (("ref", run.algo.kl.init_coef > 0), ("reward", not run.graded), ("critic", critic)):
        for flag in (f"{model}.num_nodes", f"{model}.num_gpus_per_node"):
            if used and run.flags[flag] < 1:
                yield run.refusal(flag, "must be at least 1", "a positive number")
    if (together or run.train.colocate_actor_ref) and run.algo.kl.init_coef > 0:
        yield from _same_shape(run, "ref", "actor", "they share GPUs (colocate) and algo.kl.init_coef > 0")
    if together:
        yield from _engines_fit(run)
    if critic and run.train.colocate_critic_reward:
        yield from _same_shape(run, "critic", "reward", "they share GPUs (--train.colocate_critic_reward)")
    elif together:
        for model, used in (("critic", critic), ("reward", not run.graded)):
            if used:
                yield from fits_beside_actor(run, model)


def parallel(run: Run) -> Iterator[Finding]:
    """Refuse what OpenRLHF 0.11 and DeepSpeed's AutoTP cannot combine with ring attention and tensor parallelism."""
    ring, size = run.ds.ring_attn_size, run.ds.tensor_parallel_size
    attention = run.ds.attn_implementation
    if ring > 1 and run.data.max_images_per_prompt > 0:
        # OpenRLHF's main refuses packing with images, but turns packing on for a ring only after that check.
        yield run.refusal("ds.ring_attn_size", "packs samples, which does not go with images in prompts", "1")
    if ring > 1 and "flash_attention" in attention and attention != "flash_attention_2":
        # Each rank would silently attend to its own slice alone. Upstream itself replaces attention that is not flash.
        problem = "is not supported by ring_flash_attn (--ds.ring_attn_size)"
        yield run.refusal("ds.attn_implementation", problem, "flash_attention_2")
    if size > 1 and run.ds.zero_stage == 3:
        # transformers cannot load a model under both, and OpenRLHF's weight sync gathers only one kind of shards.
        yield run.refusal("ds.zero_stage", f"does not go with --ds.tensor_parallel_size {size}", "2")
    if size > 1 and run.actor.logits_chunk:
        yield run.refusal("actor.logits_chunk", "does not go with a head that --ds.tensor_parallel_size cuts", "0")
    if run.ds.param_dtype != "bf16":  # OpenRLHF's engines refuse other weights at the first weight sync
        yield run.refusal("ds.param_dtype", "must be bf16, the rollout engines' dtype", "bf16")


def ring_package(run: Run) -> None:
    """Refuse a ring without its package. On CUDA OpenRLHF's actors import it, but OpenRLHF does not require it."""
    if run.ds.ring_attn_size > 1 and find_spec("ring_flash_attn") is None:
        problem = "needs the package ring_flash_attn, which is not installed"
        refuse("ds.ring_attn_size", problem, run.ds.ring_attn_size, "pip install ring-flash-attn==0.1.8, or 1")


def _engines_fit(run: Run) -> Iterator[Finding]:
    actors = run.ranks["actor"]
    engines = run.vllm.num_engines * run.vllm.tensor_parallel_size
    if not run.train.async_enable and actors != engines:
        problem = (
            f"times vllm.tensor_parallel_size must equal the {actors} GPUs of the actor under --train.colocate_all"
        )
        yield refusal(
            "vllm.num_engines", problem, engines, f"e.g. --vllm.num_engines {actors} --vllm.tensor_parallel_size 1"
        )


def fits_beside_actor(run: Run, model: str) -> Iterator[Finding]:
    # Ray refuses a rank whose bundle the actor's placement group does not have.
    actors, mine = run.ranks["actor"], run.ranks[model]
    if mine > actors:
        problem = f"times {model}.num_nodes must not exceed the {actors} GPUs of the actor under --train.colocate_all"
        yield refusal(f"{model}.num_gpus_per_node", problem, mine, f"at most {actors}")


def _same_shape(run: Run, model: str, other: str, reason: str) -> Iterator[Finding]:
    for name in ("num_nodes", "num_gpus_per_node"):
        mine, others = run.flags[f"{model}.{name}"], run.flags[f"{other}.{name}"]
        if mine != others:
            yield run.refusal(f"{model}.{name}", f"must equal {other}.{name} ({others}), as {reason}", f"{others}")


def batches(run: Run) -> Iterator[Finding]:
    rollouts = run.rollout.batch_size * run.rollout.n_samples_per_prompt
    ranks = _ranks(run, "actor")
    if ranks < 1:
        problem = "times actor.num_nodes must cover ds.ring_attn_size times ds.tensor_parallel_size"
        least = run.ds.ring_attn_size * run.ds.tensor_parallel_size
        yield refusal("actor.num_gpus_per_node", problem, run.ranks["actor"], f"at least {least}")
        return
    updated = {"actor": ranks} | ({"critic": max(1, _ranks(run, "critic"))} if run.estimator == "gae" else {})
    if run.train.dynamic_batch_enable:
        yield from _whole_dynamic_steps(run, rollouts, updated)
        return
    batch, micro = run.train.batch_size, run.train.micro_batch_size
    for model, count in updated.items():
        if batch % (whole := micro * count):
            problem = f"must be a multiple of train.micro_batch_size ({micro}) times the {count} {model} ranks"
            yield run.refusal("train.batch_size", problem, f"e.g. {math.ceil(batch / whole) * whole}")
    if rollouts < run.train.batch_size:
        yield Note(
            f"train.batch_size ({run.train.batch_size}) exceeds the {rollouts} rollouts of a step: its single "
            f"optimizer step uses {rollouts} (rollout.batch_size * rollout.n_samples_per_prompt)"
        )


def _whole_dynamic_steps(run: Run, rollouts: int, ranks: dict[str, int]) -> Iterator[Finding]:
    # Upstream's setup_dynamic_batch makes rollouts // batch steps of batch // ranks rollouts a rank; it drops the rest.
    if ranks["actor"] % ranks.get("critic", 1):  # upstream deals the actor ranks' lists to the critic's
        problem = (
            f"times critic.num_nodes must divide the {ranks['actor']} actor ranks with --train.dynamic_batch_enable"
        )
        yield refusal("critic.num_gpus_per_node", problem, ranks["critic"], f"{ranks['actor']}, or fixed micro-batches")
        return
    batch = run.train.batch_size
    problems = [f"a multiple of the {count} {model} ranks" for model, count in ranks.items() if batch % count]
    if rollouts % batch:
        problems.insert(0, f"a divisor of the {rollouts} rollouts of a step")
    if problems:
        shared = math.lcm(*ranks.values())
        fits = [n for n in range(shared, rollouts + 1, shared) if rollouts % n == 0]
        remedy = f"e.g. {max([n for n in fits if n <= batch], default=fits[0])}, or " if fits else ""
        problem = f"must be {' and '.join(problems)} with --train.dynamic_batch_enable, which drops the rest"
        yield run.refusal("train.batch_size", problem, f"{remedy}fixed micro-batches")


def _ranks(run: Run, model: str) -> int:
    """Return the number of ranks with separate data; the ranks of a ring or a tensor parallel group share data."""
    return run.ranks[model] // run.ds.ring_attn_size // run.ds.tensor_parallel_size


def optimizer(run: Run) -> Iterator[Finding]:
    """Refuse Muon where its update would not be Muon's."""
    for model in ("actor", "critic") if run.estimator == "gae" else ("actor",):
        if run.flags[f"{model}.optim"] == "muon":
            yield from _muon(run, model)


def _muon(run: Run, model: str) -> Iterator[Finding]:
    """Refuse Muon where DeepSpeed 0.19.6 does not orthogonalize the update, or changes its size afterwards."""
    if run.ds.zero_stage == 0:
        problem = f"makes --{model}.optim muon plain SGD, as DeepSpeed orthogonalizes gradients in ZeRO-1 and ZeRO-2"
        yield run.refusal("ds.zero_stage", problem, "1 or 2")
    if run.ds.zero_stage == 3:
        yield run.refusal("ds.zero_stage", f"crashes with --{model}.optim muon while models load", "1 or 2")
    norm = run.flags[f"{model}.max_norm"]
    if norm > 0:
        problem = "clips Muon's update after it was orthogonalized, so that it is some hundred times smaller"
        yield run.refusal(f"{model}.max_norm", problem, "0: the size of Muon's update is bounded")


def average(run: Run) -> Iterator[Finding]:
    """Refuse a moving average without ZeRO, whose optimizer has no float32 weights by rank."""
    if run.train.enable_ema and run.ds.zero_stage == 0:
        yield run.refusal("train.enable_ema", "averages the float32 weights of ZeRO", "--ds.zero_stage 1 too")


def kl_loss(run: Run) -> Iterator[Finding]:
    """Refuse a KL term whose gradient is the same on either side of the reference model.

    The derivative of k1 = log pi - log pi_ref by log pi is 1 wherever pi is; its mean over samples of pi is 0.
    """
    kl = run.algo.kl
    if kl.use_loss and kl.init_coef > 0 and kl.estimator == "k1" and not kl.unbiased_gradient:
        problem = "does not pull to the reference model in a loss: its gradient is the same wherever the policy is"
        yield run.refusal("algo.kl.estimator", problem, "k3 or k2, or --algo.kl.unbiased_gradient")


def adapters(run: Run, files: Models) -> Iterator[Finding]:
    """Refuse LoRA and 4-bit weights in combinations that cannot be merged for vLLM, saved or averaged."""
    if run.ds.load_in_4bit:
        # Upstream sends vLLM the packed bytes, and vLLM's worker asserts that they have the model's dtype.
        yield run.refusal("ds.load_in_4bit", "means weights that cannot be sent to vLLM", "--ds.lora.rank without it")
    rank = run.ds.lora.rank
    if rank < 0:
        yield run.refusal("ds.lora.rank", "must be at least 0", "e.g. 16, or 0 to train all weights")
    if rank <= 0:
        return
    if run.ds.lora.alpha < 1:
        yield run.refusal("ds.lora.alpha", "must be at least 1, or adapters do nothing", "e.g. 16")
    if not 0 <= run.ds.lora.dropout < 1:
        yield run.refusal("ds.lora.dropout", "must be in [0, 1)", "e.g. 0.05")
    if run.ds.tensor_parallel_size > 1:
        flag, remedy = "ds.tensor_parallel_size", "1 (ZeRO), or --ds.lora.rank 0"
        yield run.refusal(flag, f"means a tensor parallel actor, {_MERGED}", remedy)
    if run.train.enable_ema:
        # Upstream pairs the parameters of a model that has adapters with those of a model without adapters.
        yield run.refusal(
            "train.enable_ema", "does not go with LoRA, whose weights it would mix up", "only one of the two"
        )
    yield from _targets(run, files["actor"])


def _targets(run: Run, model: ModelFiles) -> Iterator[Finding]:
    flag, config = "ds.lora.target_modules", model.config
    named = run.flags[flag]  # PEFT knows all-linear only as a string (upstream's default); a command line gives a list
    if not named or named == ["all-linear"]:
        remedy = "e.g. q_proj v_proj, or no such flag"
        yield run.refusal(flag, "must name layers, or be left out, which means all-linear", remedy)
        return
    if "vision_config" in config:
        # For such a model upstream sends vLLM only the trained weights, but merging changes the frozen weights.
        yield run.refusal("ds.lora.rank", f"with a vision-language model, {_MERGED}", "0")
    wrong = {*named} & (_EMBEDDINGS | (_HEADS if config.get("tie_word_embeddings") else set()))
    if wrong and not isinstance(named, str):
        problem = "names an embedding, or a head that shares its weights; neither is merged for vLLM"
        yield refusal(flag, problem, sorted(wrong), "other layers, or no such flag")
    layers = {name.removesuffix(".weight") for name in linear_layers(model)}
    for target in () if isinstance(named, str) or not layers else named:  # PEFT leaves out what is not there
        if not any(f".{layer}".endswith(f".{target}") for layer in layers):
            known = sorted({layer.rpartition(".")[2] for layer in layers} - _EMBEDDINGS)
            hint = " (several are separated by spaces)" if "," in target else did_you_mean(target, known)
            problem = f"names a layer that the model does not have{hint}"
            yield refusal(flag, problem, target, f"some of {', '.join(known)}, or no such flag")
