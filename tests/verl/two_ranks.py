"""One of two data-parallel ranks: `torchrun --standalone --nproc-per-node 2 two_ranks.py`; every group lies on both."""

import json

import torch
from cpu_worker import batch, rollouts, worker
from test_verl import REQUEST, expected_weights
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils as tu

from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank, rows = torch.distributed.get_rank(), rollouts()
made = worker()
assert made.actor.engine.get_data_parallel_size() == 2
filler = {"prompt": [1, 1], "response": [1], "mask": [0], "score": 0.0, "uid": "pad"}  # as verl fills batches up
mine = [*rows[rank::2], filler, filler]
output = made.compute_log_prob(batch(mine, credit=REQUEST))
expected = expected_weights(AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32).eval(), rows)[rank::2]
for i, weight in enumerate(expected):
    mask = torch.tensor(mine[i]["mask"]).bool()
    assert torch.allclose(output["credit_positive"][i][mask], weight, rtol=1e-4, atol=1e-5), (rank, i)
said = [None, None]
torch.distributed.all_gather_object(said, json.loads(tu.get(output, "credit_metrics")[0]))
assert said[0] == said[1] and said[0]["shear/mixed_groups"] > 0
print(f"rank {rank}: as shear_weights says", flush=True)
torch.distributed.destroy_process_group()
