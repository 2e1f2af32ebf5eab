"""Old log-probs and advantages of a step, by verl's trainer with ours on top, over a TransferQueue on a local Ray."""

import sys
import tempfile
from pathlib import Path

import ray
import torch
import transfer_queue as tq
import verl
from cpu_worker import batch, rollouts, worker
from omegaconf import OmegaConf
from test_verl import expected_weights, protocol
from transformers import AutoModelForCausalLM
from verl.trainer.ppo.ray_trainer import compute_advantage

from openrlhf_shear.integrations.verl import ShearTrainer
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR

torch.set_num_threads(1)
store = Path(tempfile.mkdtemp()) / "store"
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
config = OmegaConf.load(Path(verl.__file__).parent / "trainer/config/_generated_ppo_trainer.yaml")
OmegaConf.set_struct(config, False)
config.transfer_queue.backend.SimpleStorage.update(num_data_storage_units=1, total_storage_size=1000)
config.transfer_queue.enable = True
config.actor_rollout_ref.rollout.calculate_log_probs = False  # there is no sampler to compare with
config.algorithm.update(adv_estimator="shear", credit="shear/window=8/stride=4")
ray.init(address="local", num_cpus=16, include_dashboard=False, logging_level="ERROR")
tq.init(config.transfer_queue)
try:
    rows = rollouts()
    made = worker()
    fields = ("prompts", "responses", "response_mask", "loss_mask", "input_ids", "position_ids", "rm_scores", "uid")
    keys = [f"{row['uid']}_{i}_0" for i, row in enumerate(rows)]
    tags = [{"seq_len": len(row["prompt"]) + len(row["response"])} for row in rows]
    meta = tq.kv_batch_put(keys=keys, partition_id="train", fields=batch(rows).select(*fields), tags=tags)
    trainer = ShearTrainer.__new__(ShearTrainer)  # verl's constructor asks for a rollout engine
    trainer.config, trainer.global_steps, trainer.actor_rollout_wg = config, 3, made
    trainer.read_credit(config)
    metrics = {}
    meta = trainer._compute_old_log_prob(meta, metrics)
    assert "credit" not in meta.extra_info
    trainer._compute_advantage(meta, metrics)
    found = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=["advantages"])["advantages"]
    base = compute_advantage(protocol(rows), "grpo", config=config.algorithm).batch["advantages"]
    policy = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32).eval()
    for i, weight in enumerate(expected_weights(policy, rows)):
        mask = torch.tensor(rows[i]["mask"]).bool()
        wanted = base[i, : len(mask)][mask] * weight
        assert torch.allclose(found[i][mask], wanted, rtol=1e-4, atol=1e-5), i
    assert metrics["shear/omega_mean"] > 0 and "actor/entropy" in metrics, metrics
    print("as shear_weights says", flush=True)
finally:
    tq.close()
    ray.shutdown()
sys.exit(0)
