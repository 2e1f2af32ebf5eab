"""A rank of `gradients.py`: real updates of the fork's own actors over gloo, without Ray, and a record of them.

`main` reads FOLDER/LAUNCH.pt (rows, rollouts, command lines) and writes FOLDER/LAUNCH/ROW.pt for each row, on rank 0:

- `weights`: float32 master weights by name, before the update and after each optimizer step
- `rows`: for each optimizer step, the tokens of its rollouts, over all ranks
- `status`: the update's metrics, as the trainer gets them
- `error`: the message of a run that ended, in place of the other entries
"""

import os
from pathlib import Path

import torch

from openrlhf_shear.train.cpu import backend as cpu_backend

cpu_backend.install()  # the modules below import OpenRLHF's

from deepspeed.utils import safe_get_full_fp32_param  # noqa: E402
from openrlhf.trainer.ppo_utils.experience import Experience, balance_experiences  # noqa: E402
from openrlhf.utils import get_strategy, utils  # noqa: E402
from openrlhf.utils.config import hierarchize  # noqa: E402

from openrlhf_shear.cli.train_ppo_ray import parse  # noqa: E402
from openrlhf_shear.train import hooks  # noqa: E402
from openrlhf_shear.train.experience.fillers import shared_out  # noqa: E402
from openrlhf_shear.train.screen.outcome import RunEndedError  # noqa: E402
from openrlhf_shear.train.start import launch  # noqa: E402
from openrlhf_shear.train.upstream import plain_class  # noqa: E402


def experience_of(rollout: dict) -> Experience:
    """Return a batch of one rollout, as the experience maker gives it."""
    tokens, actions = rollout["tokens"], rollout["actions"]
    length = torch.tensor([float(actions.sum())])
    return Experience(
        sequences=tokens[None],
        attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
        action_mask=actions[None],
        **{name: rollout[name][None] for name in ("action_log_probs", "base_action_log_probs", "advantages")},
        **{name: rollout[name][None] for name in ("values", "returns")},
        response_length=length,
        total_length=torch.tensor([float(len(tokens))]),
        index=[rollout["index"]],
        prompts=["p"],
        labels=["l"],
        images=["picture" if rollout["seen"] else None],
        mm_train_inputs=[rollout["seen"]],
        info={"reward": torch.tensor([rollout["reward"]]), "kl": torch.tensor([rollout["kl"]])},
    )


def share_of(experiences: list[Experience], rank: int, ranks: int, copies: int) -> list[Experience]:
    """Return this rank's share, as OpenRLHF's actor group deals them out (`async_run_method_batch`)."""
    groups = ranks // copies
    size = -(-len(experiences) // groups)
    first = rank // copies * size
    return experiences[first : first + size]


def built(role: str, args, rank: int, ranks: int):
    """Return an actor with its model loaded, and the model that it trains."""
    patch = hooks.CRITIC if role == "critic" else hooks.POLICY
    actor = plain_class(patch.get())(ranks, rank, "127.0.0.1", os.environ["MASTER_PORT"])
    strategy = get_strategy(args)
    if args.offload:  # the CPU profile turns it off; DeepSpeed keeps torch's Adam, whose kernel needs no compilation
        strategy.adam_offload, config = True, strategy.get_ds_train_config
        strategy.get_ds_train_config = lambda *given, **named: (
            config(*given, **named) | {"zero_force_ds_cpu_optimizer": False}
        )
    options = (10,) if role == "critic" else (10, None)
    actor.init_model_from_pretrained(strategy, args.actor.model_name_or_path, *options)
    if args.upstream:
        told = strategy.begin_micro_batch
        strategy.begin_micro_batch = lambda engine, ends_step: told(engine, None)
    if not args.probed:
        strategy.arrival.stop()
        strategy.arrival = None
    return actor, actor.critic if role == "critic" else actor.actor.model


def master_weights(engine) -> dict[str, torch.Tensor]:
    """Return the float32 weights by name; every rank must call this. A tensor parallel rank has its part only."""
    weights = {}
    for name, parameter in engine.module.named_parameters():
        if parameter.requires_grad:
            weights[name] = safe_get_full_fp32_param(parameter).detach().cpu().clone()
    return weights


def joined(parts: list[torch.Tensor], shape: torch.Size) -> torch.Tensor:
    """Join a tensor parallel layer's weight from its ranks' parts, along the axis that is shorter than in `shape`."""
    axis = [i for i, (part, whole) in enumerate(zip(parts[0].shape, shape, strict=True)) if part != whole]
    return torch.cat(parts, axis[0]) if axis else parts[0]


def update(row: dict, rollouts: list[dict], shapes: dict, rank: int, ranks: int) -> dict:
    """Run a row's update."""
    args = hierarchize(parse(row["line"]))
    args.offload, args.upstream, args.probed = row["offload"], row["upstream"], row["probed"]
    if not row["bfloat16"]:
        args.ds.param_dtype = "fp32"  # no choice of OpenRLHF's; it tells a lost gradient from a rounded one
    copies = args.ds.ring_attn_size * args.ds.tensor_parallel_size
    actor, engine = built(row["role"], args, rank, ranks)
    trainer, strategy, pad = actor.trainer, actor.strategy, 0
    micro, batch = args.train.micro_batch_size, args.train.batch_size
    given = [experience_of(rollout) for rollout in rollouts[: row["rollouts"]]]
    if row["role"] == "policy":  # old log-probs come from the actor's own pass, which rounds as its update does
        for experience, rollout in zip(given, rollouts, strict=False):
            inputs = (experience.sequences, experience.action_mask, experience.attention_mask)
            inputs += (None, experience.mm_train_inputs)
            experience.action_log_probs = actor.forward(*inputs).float() + rollout["off_policy"]
    given = [Experience.concat_experiences(given[i : i + micro], pad) for i in range(0, len(given), micro)]
    given = shared_out(given, batch, micro, [ranks // copies], pad, args.train.dynamic_batch_enable)
    if args.train.dynamic_batch_enable:
        given = balance_experiences(given, args)
    actor.begin_update(0)
    for experience in share_of(given, rank, ranks, copies):
        actor.append(experience)

    seen: list[list[list[int]]] = [[]]
    weights = [master_weights(engine)]
    step, applied = trainer.training_step, strategy.optimizer_step

    def training_step(experience, *others):
        rows = zip(experience.sequences, experience.attention_mask.bool(), experience.action_mask, strict=True)
        seen[-1] += [tokens[attended].tolist() for tokens, attended, actions in rows if actions.any()]  # no fillers
        return step(experience, *others)

    def optimizer_step(*given, **named):
        before = engine.global_steps
        applied(*given, **named)
        if engine.global_steps > before:
            weights.append(master_weights(engine))
            seen.append([])

    trainer.training_step, strategy.optimizer_step = training_step, optimizer_step
    status = actor.fit(*([] if row["role"] == "critic" else [args.algo.kl.init_coef]))
    everyone = [None] * ranks
    torch.distributed.all_gather_object(everyone, (seen[:-1], weights))
    rows = [[tokens for of_rank in everyone[::copies] for tokens in of_rank[0][k]] for k in range(len(seen) - 1)]
    if args.ds.tensor_parallel_size > 1:
        weights = [
            {name: joined([of_rank[1][k][name] for of_rank in everyone], shapes[name]) for name in step_weights}
            for k, step_weights in enumerate(weights)
        ]
    return {"weights": weights, "rows": rows, "status": status}


def main(rank: int, ranks: int, name: str, folder: Path) -> None:
    asked = torch.load(folder / f"{name}.pt", weights_only=False)
    os.environ.update(asked["environment"], LOCAL_RANK="0", RANK=str(rank), WORLD_SIZE=str(ranks))
    launch.install_hooks(cpu_backend.MIXINS)
    known = utils.convert_to_torch_dtype
    utils.convert_to_torch_dtype = lambda name: torch.float32 if name == "fp32" else known(name)
    (folder / name).mkdir(exist_ok=True)
    for row in asked["rows"]:
        try:
            with hooks.RING_ATTENTION.held(hooks.RING_ATTENTION.get()):  # each row installs another one
                done = update(row, asked["rollouts"], asked["shapes"], rank, ranks)
        except RunEndedError as error:
            done = {"error": f"{type(error).__name__}: {error}"}
        if rank == 0:
            torch.save(done, folder / name / f"{row['name']}.pt")
        torch.distributed.barrier()
