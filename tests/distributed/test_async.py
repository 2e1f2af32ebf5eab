"""Asynchronous training with partial rollouts: stopped in the middle, resumed, and checked at every step."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from cases import table

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit import shear_weights
from openrlhf_shear.tasks.arithmetic.problems import write_dataset

from .conftest import COMMON, scalars_of
from .processes import wait_until

REWARD = table("distributed", "ASYNC")
STEPS, SIZE, BATCH = 3, 4, 32  # rollouts a prompt, and a step
# The model is bf16, and the actor's passes are padded batches. Measured: token weights differ by at most 0.0014
# from the weights of one rollout a pass. They differ by 0.019 to 0.035 from the
# weights of a policy one step older or younger.
OMEGA_NOISE = 0.005


def command(folder) -> list:
    return [
        *(sys.executable, "-m", "openrlhf_shear.cli.train_ppo_ray", *COMMON),
        *("--train.async_enable", "--train.partial_rollout_enable", "--ckpt.load_enable"),
        *("--data.prompt_dataset", folder / "train.jsonl", "--reward.remote_url", folder / "reward.py"),
        *("--rollout.batch_size", BATCH // SIZE, "--rollout.micro_batch_size", "8"),
        *("--train.batch_size", "16", "--train.micro_batch_size", "8", "--actor.adam.lr", "3e-4"),
        *("--actor.lr_scheduler", "constant", "--ckpt.output_dir", folder / "checkpoint"),
        *("--ckpt.path", folder / "ckpt", "--ckpt.save_steps", "1", "--ckpt.save_hf", "--ckpt.max_num", STEPS),
        *("--eval.dataset", folder / "heldout.jsonl", "--eval.steps", "2", "--eval.n_samples_per_prompt", "1"),
        *("--logger.tensorboard_dir", folder / "tensorboard", "--credit.dump_rollouts_every", "1"),
    ]


@pytest.mark.long
def test_a_run_is_stopped_and_resumed_and_every_step_adds_up(policy, tmp_path, jobs):
    (tmp_path / "reward.py").write_text(REWARD)
    write_dataset(tmp_path / "train.jsonl", STEPS * BATCH // SIZE, seed=0)
    write_dataset(tmp_path / "heldout.jsonl", 8, seed=1, split="heldout")
    first = jobs.start(*command(tmp_path))
    saved = tmp_path / "ckpt" / "_actor" / "global_step1"

    def has_begun() -> bool:
        assert first.poll() is None, "it ended by itself"
        return saved.is_dir()

    wait_until(has_begun, "a checkpoint is there", pause=0.05)
    driver = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()[0]
    os.kill(int(driver), signal.SIGTERM)
    stopped = jobs.finish(first)
    assert stopped.code == 75 and "stopped by SIGTERM after step" in stopped.log
    resumed = jobs.run(*command(tmp_path))
    assert resumed.code == 0 and "resuming after step" in resumed.log

    scalars = scalars_of(tmp_path / "tensorboard")
    ledger = {name.rpartition("/")[2]: values for name, values in scalars.items() if "/ledger/" in name}
    of_steps = zip(*(ledger[name] for name in ("dispatched", "trained", "filtered", "failed", "waiting")), strict=True)
    for step, (dispatched, trained, filtered, failed, waiting) in enumerate(of_steps, 1):
        assert dispatched == trained + filtered + failed + waiting and filtered == 0
        assert step * BATCH <= dispatched <= (step + 1) * BATCH, "one batch may be made ahead"
    assert step == STEPS and dispatched == STEPS * BATCH and waiting == 0 and failed > 0
    assert ledger["failed_raised_KeyError"][-1] == failed
    for name in (
        "timing/generation",
        "timing/step_total",
        "shear/credit_share",
        "shear/blame_over_praise",
        "rollout/reward_mean",
        "policy_loss",
    ):
        assert len(scalars[f"train/{name}"]) == STEPS, name
    assert len(scalars["eval/eval_arithmetic_pass1"]) == 1
    check_weights(policy, tmp_path / "ckpt", failed)


@torch.no_grad()
def check_weights(policy, folder, failed):
    """A step's weights come from the states of that step's policy, whichever policy sampled the rollouts."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from openrlhf_shear.rollouts.record import by_group, read_rollouts

    tokenizer = AutoTokenizer.from_pretrained(policy)
    models = [policy, *(folder / f"global_step{step}_hf" for step in range(1, STEPS))]
    models = [AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16) for model in models]

    def states(model, row) -> torch.Tensor:
        prompt = tokenizer(row.prompt, add_special_tokens=False)["input_ids"]
        tokens = torch.tensor([[*prompt, *row.token_ids]])
        return model.base_model(tokens).last_hidden_state[0, len(prompt) :]

    def difference(rows, model) -> float:
        config = ShearConfig(window=16, stride=4)
        made = shear_weights([states(model, row) for row in rows], [row.correct for row in rows], config).weights
        return max((w - torch.tensor(row.weights)).abs().max().item() for w, row in zip(made, rows, strict=True))

    unrated = 0
    for step, model in enumerate(models, 1):
        rows, _ = read_rollouts(folder / "rollouts" / f"step{step:06d}.parquet")
        groups = [g for g in by_group(rows).values() if {row.correct for row in g} >= {True, False}][:3]
        unrated += sum(row.correct is None for row in rows)
        assert max(difference(group, model) for group in groups) < OMEGA_NOISE, step
    stale = max(difference(group, models[-2]) for group in groups)
    assert stale > 2 * OMEGA_NOISE, "or comparing shows nothing"
    assert unrated == failed
