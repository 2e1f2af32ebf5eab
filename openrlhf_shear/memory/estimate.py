"""Estimate of a GPU's memory in a training run, by part and by phase, from flags and the models' config.json.

Units are bytes. P: parameters; N: ranks that ZeRO shards over; t: tokens a pass; d: hidden size; V: vocabulary size.
Lengths are taken at their limits, so token-dependent parts are upper bounds. docs/memory.md has the sources and the
measurements.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from openrlhf_shear.config.spec import SEARCH_BYTES, WAITING_BYTES
from openrlhf_shear.line.run import Run
from openrlhf_shear.memory.model_shape import ModelShape

GIB = 2**30
ENGINES = "engines' GPUs"  # the phase of GPUs that only engines use
# Bytes a parameter: bfloat16; float32; Adam's two moments in float32 (ZeRO, arXiv:1910.02054).
LOW, MASTER, MOMENTS = 2, 4, 8
# Parameters: in DeepSpeed's reduce bucket, gathered at a time, updated at a time in a step.
_BUCKET, _LIVE, _SUB_GROUP = 5e8, 1e9, 1e9
_CONTEXT = GIB  # a process: CUDA context, NCCL's buffers, cuBLAS
_ASLEEP = {False: GIB, True: 2.5 * GIB}  # a sleeping engine, on one GPU and on several (NeMo-RL issue 223)
_FRAGMENTS = 0.05  # share of a pass's memory that torch's allocator loses to fragmentation


@dataclass(frozen=True)
class Phase:
    """Bytes by part that are on a GPU at the same time."""

    name: str
    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory of a GPU in each phase of a step."""

    phases: tuple[Phase, ...]
    host: float  # bytes of a node's main memory that models take: offloaded states, and weights of sleeping engines
    engine: float  # least bytes that an engine needs on each GPU: weights, the KV cache of one sequence, context

    @property
    def peak(self) -> Phase:
        return max(self.phases, key=lambda phase: phase.total)


@dataclass(frozen=True)
class Trained:
    """Bytes that a trained model takes on a GPU."""

    weights: float
    gathered: float  # ZeRO-3: unsharded weights that a pass holds
    gradients: float  # in an update, with their communication buckets
    held: float  # the part of `gradients` that stays between updates
    optimizer: float
    step: float  # extra bytes of an Adam step
    offloaded: float  # in the node's memory: always with --ds.adam_offload, between updates with --ds.enable_sleep

    @property
    def awake(self) -> float:
        """Bytes between updates, without sleep."""
        return self.weights + self.held + self.optimizer


def trained(run: Run, shape: ModelShape, ranks: int) -> Trained:
    """Return the memory of a model that DeepSpeed trains. With LoRA only the adapters are trained.

    The formulas follow `zero/stage3.py` and `zero/stage_1_and_2.py` of DeepSpeed 0.19.6.
    """
    stage, parallel = run.ds.zero_stage, run.ds.tensor_parallel_size
    adapters = shape.adapters(run.ds.lora.rank)
    parameters, shards = (shape.parameters + adapters) / parallel, ranks / parallel
    learning = adapters / parallel or parameters
    own = learning / (shards if stage else 1)  # parameters whose optimizer state this rank holds
    gradients = (4 if run.ds.grad_accum_dtype == "fp32" else LOW) * (own if stage >= 2 else learning)
    optimizer = (MASTER + MOMENTS) * own
    step = MASTER * (min(own, _SUB_GROUP) if stage == 3 else own)  # gradients in float32
    # Stage 3 keeps its bucket and sends copies of it. Other stages may fill a second bucket meanwhile, and keep none.
    bucket = LOW * min(_BUCKET, parameters) * bool(stage)
    buckets = bucket * (2 if stage == 3 or run.ds.overlap_comm else 1)
    weights, gathered = LOW * parameters, 0.0
    if stage == 3:
        weights *= 1 / shards + (1 / run.ds.zpg if run.ds.zpg > 1 else 0)
        gathered = LOW * min(parameters, _LIVE)
    if run.ds.adam_offload:
        return Trained(weights, gathered, buckets, bucket * (stage == 3), 0, 0, optimizer + gradients + step)
    offloaded = (optimizer + gradients) * run.ds.enable_sleep
    held = (gradients + bucket) * (stage == 3)
    return Trained(weights, gathered, gradients + buckets, held, optimizer, step, offloaded)


def frozen(run: Run, shape: ModelShape, ranks: int, offload: bool) -> float:
    """Return the bytes of the weights of a model that is not trained. Only ZeRO-3 shards and offloads them."""
    if run.ds.zero_stage == 3:
        return 0.0 if offload else LOW * shape.parameters / ranks
    return LOW * shape.parameters / run.ds.tensor_parallel_size


def layer_bytes(shape: ModelShape) -> tuple[int, int]:
    """Return bytes a token: what a decoder layer keeps for its backward pass, and what a layer needs without gradients.

    Assumes bfloat16 with flash attention, and norms in float32. A layer keeps:

    - two norms (a float32 copy, the normed values and the result: 8 d each) and the residual (2 d)
    - q, k, v and the output of the attention
    - gate, up, their product and the output of silu (2 f each)
    """
    d, mlp, experts = shape.hidden, 8 * shape.mlp, 4 * shape.hidden * shape.copies
    return 18 * d + 4 * (shape.queries + shape.keys) + mlp + experts, 12 * d + mlp + experts


def backward_bytes(run: Run, shape: ModelShape, tokens: float) -> tuple[float, float]:
    """Return the bytes of activations and of logits in an update's pass over t tokens.

    Logits are three tensors (t, V): float32 logits that the loss keeps, their float32 gradient, and its bfloat16 copy
    (`Actor.forward`, flash-attn's cross entropy). With --actor.logits_chunk they are those of a chunk, beside two
    gradients of the LM head: the chunk's, and the sum. The current layer also holds gradients of its kept activations.
    """
    layer, _ = layer_bytes(shape)
    boundary = LOW * shape.hidden
    stored = boundary * shape.layers + layer if run.actor.gradient_checkpointing_enable else layer * shape.layers
    working = 6 * shape.mlp + 8 * shape.hidden
    rows = chunk_tokens(run, tokens)
    sums = 2 * LOW * shape.vocabulary * shape.hidden * (rows < tokens)
    return tokens * (stored + working), rows * shape.vocabulary * (4 + 4 + LOW) + sums


def chunk_tokens(run: Run, tokens: float) -> float:
    """Return of how many of a pass's tokens there are logits at a time."""
    return min(tokens, run.actor.logits_chunk or tokens)


def pass_tokens(run: Run, certain: bool = False) -> tuple[int, int]:
    """Return the tokens of the longest log-prob pass and of the longest update pass.

    Args:
        certain: count what a single rollout of the longest length causes; else assume micro-batches of such rollouts.
    """
    longest = run.data.max_len
    ranks = run.ranks["actor"] / run.ds.ring_attn_size / run.ds.tensor_parallel_size
    rollouts = run.rollout.batch_size * run.rollout.n_samples_per_prompt
    packed = run.ds.packing_samples or run.train.dynamic_batch_enable or run.ds.ring_attn_size > 1
    tokens = []
    for stage, batch in (("rollout", rollouts), ("train", run.train.batch_size)):
        if run.train.dynamic_batch_enable:
            limit = run.flags[f"{stage}.max_tokens_per_gpu"] or run.train.max_tokens_per_gpu
            limit *= run.ds.tensor_parallel_size  # the limit is a group's, and each of its ranks passes it all
            most = max(1, -(-batch // ranks)) * longest / run.ds.ring_attn_size  # tokens of a rank's rollouts
            tokens.append(int(max(min(limit, most), longest / run.ds.ring_attn_size)))
        else:
            rows = 1 if certain and packed else run.flags[f"{stage}.micro_batch_size"]
            tokens.append(int(rows * longest / run.ds.ring_attn_size))
    return tokens[0], tokens[1]


def estimate(
    run: Run,
    shapes: Mapping[str, ModelShape],
    memory: float | None,
    certain: bool = False,
) -> MemoryEstimate:
    """Estimate the phases of a step on an actor rank's GPU, and on GPUs that only a critic or the engines use.

    Args:
        shapes: of "actor", and of "critic", "reward" and "prm" if they are used.
        memory: bytes of a GPU; None if it is not known: engines then count with the least that they need.
        certain: as in `pass_tokens`.
    """
    states = {"hidden_states", "source_states"} & run.traits.needs  # that the credit rule reads
    actor, together, ranks = shapes["actor"], run.train.colocate_all, run.ranks["actor"]
    mine, (read, updated) = trained(run, actor, ranks), pass_tokens(run, certain)
    critic = trained(run, shapes["critic"], run.ranks["critic"]) if "critic" in shapes else None
    still = {name: frozen(run, shapes[name], run.ranks[name], run.flags[f"{name}.offload"])
             for name in ("reward", "prm") if name in shapes}  # fmt: skip
    # OpenRLHF then puts critic and reward model on further GPUs, also if all others share theirs.
    own = critic is not None and run.train.colocate_critic_reward
    in_turns = run.ds.enable_sleep and not run.ds.adam_offload
    beside = _beside(run, actor, None if own else critic, still, own)
    processes = 1 + len(beside)
    if run.train.enable_ema and run.ds.zero_stage < 3:
        beside["moving average"] = LOW * actor.parameters

    hybrid = together and not run.train.async_enable  # the engines share these GPUs
    parallel = run.vllm.tensor_parallel_size
    cache = 2 * LOW * actor.layers * actor.keys * run.data.max_len
    least = (LOW * actor.parameters + cache) / parallel + 2 * _CONTEXT
    share = run.vllm.gpu_memory_utilization * memory if memory else least
    dozing = (_ASLEEP[parallel > 1] if run.vllm.enable_sleep else share) * hybrid

    def phase(name: str, vllm: float = dozing, updates: bool = False, whole: float = 0, **parts: float) -> Phase:
        on = {"weights": mine.weights + whole} | beside
        if updates or not in_turns:
            on |= {"gradients": mine.gradients if updates else mine.held, "optimizer": mine.optimizer}
        reserve = _CONTEXT * processes + _FRAGMENTS * sum(parts.values())
        named = {part.replace("_", " "): size for part, size in parts.items()}
        every = on | named | {"vLLM": vllm, "reserve": reserve}
        return Phase(name, {part: size for part, size in every.items() if size})

    seen = min(run.rollout.max_new_tokens or run.data.max_len, run.data.max_len)
    group = LOW * actor.hidden * run.rollout.n_samples_per_prompt * seen * len(states)
    activations, logits = backward_bytes(run, actor, updated)
    forward = {"activations": read * layer_bytes(actor)[1]}
    forward["logits"] = chunk_tokens(run, read) * actor.vocabulary * (LOW + 4)
    limit = run.credit.max_waiting_bytes  # unset, it adapts to the free memory
    waiting = min(-(-run.rollout.batch_size // ranks) * group, WAITING_BYTES if limit is None else limit)
    forward["group_states"] = group + waiting + LOW * actor.hidden * read * run.ds.ring_attn_size * len(states)
    theirs: dict[str, float] = {}  # a critic's memory in its update
    if critic:
        theirs["critic"] = critic.weights + critic.gathered + critic.gradients + critic.optimizer
        theirs["activations"] = backward_bytes(run, shapes["critic"], updated)[0]
    at_once = theirs if together and not own and not run.ds.enable_sleep else {}
    mixed = {**at_once, "activations": activations + at_once.get("activations", 0), "logits": logits}
    phases = [
        phase("generation", vllm=share * hybrid),
        phase("log-probs", whole=mine.gathered, **forward),
        phase("backward", updates=True, whole=mine.gathered, **mixed),
        phase("step", updates=True, step_of_Adam=mine.step),
    ]
    search = run.credit.max_cost_bytes or SEARCH_BYTES  # the search adapts to the free memory
    if "hidden_states" in states:  # the search copies the group: each of its two sides becomes one contiguous tensor
        phases.insert(2, phase("credit", group_states=group + waiting, search=search + group))
    elif states:
        phases.insert(2, phase("credit", group_states=group + waiting))
    if critic and together and not own and not at_once:
        phases.append(phase("critic", **theirs))
    elif critic and (own or not together):
        scorer = {"reward model": still["reward"]} if own and "reward" in still else {}
        reserve = _CONTEXT * (1 + len(scorer)) + _FRAGMENTS * theirs["activations"]
        phases.append(Phase("critic's GPUs", theirs | scorer | {"reserve": reserve}))
    if not hybrid:
        phases.append(Phase(ENGINES, {"vLLM": share}))
    host = _host_bytes(run, shapes, mine, critic, hybrid)
    return MemoryEstimate(tuple(phases), host / run.actor.num_nodes, least)


def _beside(
    run: Run, actor: ModelShape, critic: Trained | None, still: Mapping[str, float], own: bool
) -> dict[str, float]:
    """Return the bytes of the models that stay on the actor's GPUs all the time.

    Args:
        critic: None if there is none, or if it has other GPUs.
        still: bytes of the reward models' weights.
        own: whether the reward model has other GPUs, with the critic.
    """
    beside, together = {}, run.train.colocate_all
    if run.algo.kl.init_coef > 0 and (together or run.train.colocate_actor_ref):
        beside["reference"] = frozen(run, actor, run.ranks["ref"], run.ref.offload)
    for name, part in (("reward", "reward model"), ("prm", "process reward model")):
        if name in still and together and not (own and name == "reward"):
            beside[part] = still[name]
    if critic and together:
        in_turns = run.ds.enable_sleep and not run.ds.adam_offload
        beside["critic"] = critic.weights if in_turns else critic.awake
    return beside


def _host_bytes(
    run: Run, shapes: Mapping[str, ModelShape], mine: Trained, critic: Trained | None, hybrid: bool
) -> float:
    """Return the bytes of all nodes' main memory that models take; `hybrid`: the engines share the actor's GPUs."""
    weights = LOW * shapes["actor"].parameters
    host = mine.offloaded * run.ranks["actor"] + (critic.offloaded * run.ranks["critic"] if critic else 0)
    host += weights * run.vllm.num_engines * (hybrid and run.vllm.enable_sleep)
    host += 2 * weights * run.train.enable_ema  # float32
    if run.ds.zero_stage == 3:  # other stages keep these on the GPU
        host += weights * (run.ref.offload and run.algo.kl.init_coef > 0)
        host += weights * run.train.enable_ema
        host += sum(LOW * shapes[name].parameters for name in ("reward", "prm")
                    if name in shapes and run.flags[f"{name}.offload"])  # fmt: skip
    return host
