"""One rank of updates that are resumed: the fork's policy actor and its checkpoints over gloo, without Ray.

    python tests/unit/resume_rank.py NAME RANK RANKS FOLDER

reads FOLDER/NAME.pt, a list of phases (`Phase`), runs them one after the other and writes FOLDER/NAME_done.pt, a `Done`
of each.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from gradient_worker import built, experience_of, master_weights, share_of
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.config import hierarchize

from openrlhf_shear.cli.train_ppo_ray import parse
from openrlhf_shear.fork import cpu_backend, hooks, launch


@dataclass(frozen=True)
class Phase:
    """Some updates of a run.

    Attributes:
        line: its command line; with --ckpt.load_enable it goes on from what is there.
        updates: the numbers of those that it does.
        saved_after: the update that a checkpoint is made after; None for none.
        models: whether the model is saved and sent to an engine in the end.
    """

    line: list[str]
    updates: list[int]
    saved_after: int | None = None
    saved_to: str = ""


@dataclass
class Done:
    rates: list[float]  # of each optimizer step, as it is applied
    weights: dict[str, torch.Tensor]  # float32, at the end
    sent: dict[str, torch.Tensor]  # to the engines, at the end
    error: str = ""


def run(phase: Phase, rollouts: list[dict], rank: int, ranks: int) -> Done:
    args = hierarchize(parse(phase.line))
    args.offload, args.upstream, args.probed = False, False, True
    actor, engine = built("policy", args, rank, ranks)
    strategy, rates = actor.strategy, []
    applied = strategy.optimizer_step

    def optimizer_step(*given, **named):
        if engine.is_gradient_accumulation_boundary():
            rates.append(engine.optimizer.param_groups[0]["lr"])
        applied(*given, **named)

    strategy.optimizer_step = optimizer_step
    micro, batch = args.train.micro_batch_size, args.train.batch_size
    for number in phase.updates:
        given = [experience_of(rollout) for rollout in rollouts[batch * number : batch * (number + 1)]]
        for experience in given:
            inputs = (experience.sequences, experience.action_mask, experience.attention_mask)
            experience.action_log_probs = actor.forward(*inputs).float()
        given = [Experience.concat_experiences(given[i : i + micro], 0) for i in range(0, batch, micro)]
        for experience in share_of(given, args, rank, ranks, 1):
            actor.append(experience)
        actor.set_seed(number)
        actor.fit(0.0)
        if number == phase.saved_after:
            actor.save_checkpoint(f"global_step{number + 1}", {"global_step": number + 1})
    if phase.saved_to:
        strategy.save_model(actor.actor, actor.tokenizer, phase.saved_to)
    return Done(rates, master_weights(engine), sent_by(actor))


def sent_by(actor) -> dict[str, torch.Tensor]:
    """What an engine would read."""
    from safetensors.torch import load_file

    kept = {}

    class Engine:
        class load_actor_weights:
            @staticmethod
            def remote(file):
                kept.update(load_file(file))

    import ray

    actor.vllm_engines = [Engine()]
    wait, get = ray.wait, ray.get
    ray.wait = ray.get = lambda *a, **k: None
    actor.broadcast_to_vllm()
    ray.wait, ray.get = wait, get
    return kept


def main(name: str, rank: int, ranks: int, folder: Path) -> None:
    asked = torch.load(folder / f"{name}.pt", weights_only=False)
    os.environ.update(asked["environment"], LOCAL_RANK="0", RANK=str(rank), WORLD_SIZE=str(ranks))
    launch.install_hooks(cpu_backend.MIXINS)
    done = []
    for phase in asked["phases"]:
        with hooks.RING_ATTENTION.held(hooks.RING_ATTENTION.get()):
            try:
                done.append(run(Phase(**phase), asked["rollouts"], rank, ranks))
            except Exception as error:
                import traceback; traceback.print_exc()
                done.append(Done([], {}, {}, f"{type(error).__name__}: {error}"))
    if rank == 0:
        torch.save([vars(d) for d in done], folder / f"{name}_done.pt")
    torch.distributed.barrier()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
