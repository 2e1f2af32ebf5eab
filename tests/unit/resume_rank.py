"""One rank of updates that are resumed: the fork's policy actor and its checkpoints over gloo, without Ray.

`main` reads FOLDER/NAME.pt, the phases of runs, and writes FOLDER/NAME_done.pt, what each of them did (`run`).
"""

import os
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from gradient_worker import built, experience_of, master_weights, share_of
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.config import hierarchize
from safetensors.torch import load_file

from openrlhf_shear.cli.train_ppo_ray import parse
from openrlhf_shear.train import hooks
from openrlhf_shear.train.carriers import Save
from openrlhf_shear.train.cpu import backend as cpu_backend
from openrlhf_shear.train.start import launch


def run(phase: dict, rollouts: list[dict], rank: int, ranks: int) -> dict:
    """Some updates of a run: its command line, their numbers, the last before a checkpoint, the model's folder."""
    args = hierarchize(parse(phase["line"]))
    args.offload, args.upstream, args.probed = False, False, True
    actor, engine = built("policy", args, rank, ranks)
    strategy, rates = actor.strategy, []
    start, sizes = trained(engine), []  # the largest distance of a weight from its start, after each optimizer step
    average = {name: weight.double() for name, weight in start.items()}  # of the phase, in float64
    applied, batch, micro = strategy.optimizer_step, args.train.batch_size, args.train.micro_batch_size

    def optimizer_step(*given, **named):
        ends = engine.is_gradient_accumulation_boundary()
        if ends:
            rates.append(engine.optimizer.param_groups[0]["lr"])
        applied(*given, **named)
        if ends:
            weights = trained(engine)
            sizes.append(max((weight - start[name]).abs().max().item() for name, weight in weights.items()))
            for name, weight in weights.items():
                average[name] = args.train.ema_beta * average[name] + (1 - args.train.ema_beta) * weight

    strategy.optimizer_step = optimizer_step
    for number in phase["updates"]:
        given = [experience_of(rollout) for rollout in rollouts[batch * number : batch * (number + 1)]]
        for experience in given:  # a random policy's own
            inputs = (experience.sequences, experience.action_mask, experience.attention_mask)
            experience.action_log_probs = actor.forward(*inputs).float()
        given = [Experience.concat_experiences(given[i : i + micro], 0) for i in range(0, batch, micro)]
        actor.begin_update(number)
        for experience in share_of(given, rank, ranks, 1):
            actor.append(experience)
        actor.fit(0.0)
        if number == phase["saved_after"]:
            what = Save(number + 1, checkpoint=True, model=False)
            actor.save_checkpoint(what, {"global_step": what.step})
    if not strategy.stage:  # DeepSpeed does not join these weights by name
        return {"sizes": sizes}
    strategy.save_model(actor.actor, actor.tokenizer, phase["model"])
    policy = engine.module
    tied = policy.get_output_embeddings().weight is policy.get_input_embeddings().weight
    adam = {name: engine.optimizer.param_groups[0][name] for name in ("betas", "eps")}
    with strategy.average.in_place_of_masters():
        averages = master_weights(engine)
    strategy.average.copy_to(actor.ema_model.model.module)
    named = actor.ema_model.model.module.named_parameters()
    shown = {name: getattr(weight, "ds_tensor", weight.data).flatten().clone() for name, weight in named}
    done = {
        "rates": rates,
        "weights": master_weights(engine),
        "sent": sent_by(actor),
        "tied": tied,
        "adam": adam,
        "sizes": sizes,
    }
    done |= {"averages": averages, "expected_averages": average, "average_model": shown}
    return done | {"averaged_steps": strategy.time_steps["ema"]}


def trained(engine) -> dict[str, torch.Tensor]:
    """Return the float32 weights by name; without ZeRO by their place in the optimizer."""
    if engine.zero_optimization_stage():
        return master_weights(engine)
    weights = [weight for group in engine.optimizer.param_groups for weight in group["params"]]
    return {str(place): weight.detach().clone() for place, weight in enumerate(weights)}


def sent_by(actor) -> dict[str, torch.Tensor]:
    """Return the weights that an engine reads."""
    read = {}
    remote = SimpleNamespace(remote=lambda file: read.update(load_file(file)))
    actor.vllm_engines = [SimpleNamespace(load_actor_weights=remote)]
    with mock.patch("ray.wait"), mock.patch("ray.get"):
        actor.broadcast_to_vllm()
    return read


def main(rank: int, ranks: int, name: str, folder: Path) -> None:
    asked = torch.load(folder / f"{name}.pt", weights_only=False)
    os.environ.update(asked["environment"], LOCAL_RANK="0", RANK=str(rank), WORLD_SIZE=str(ranks))
    launch.install_hooks(cpu_backend.MIXINS)
    done = []
    for phase in asked["phases"]:
        with hooks.RING_ATTENTION.held(hooks.RING_ATTENTION.get()):  # each puts its own there
            done.append(run(phase, asked["rollouts"], rank, ranks))
    if rank == 0:
        torch.save(done, folder / f"{name}_done.pt")
    torch.distributed.barrier()
