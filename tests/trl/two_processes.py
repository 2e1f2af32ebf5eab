"""One of two processes: `torchrun --standalone --nproc-per-node 2 two_processes.py ROWS FOLDER`.

Each has ROWS rows of a generation batch, in groups of four; then both train.
"""

import sys

import torch
from accelerate.utils import gather_object
from known import SHEAR, KnownTrl, batch_of, expected_weights, groups_of, policy, trainer_on

torch.set_num_threads(1)
rows, folder = int(sys.argv[1]), sys.argv[2]
settings = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": 1, "max_steps": 1}
made = trainer_on(folder, credit=SHEAR, **settings)
assert made.accelerator.num_processes == 2 and torch.distributed.get_backend() == "gloo"
batch, base = batch_of(made), batch_of(trainer_on(folder, KnownTrl, **settings))["advantages"]

# Every process sees all rows and weighs whole groups.
names = [f"{a}_{b}" for a in ("prompt", "completion") for b in ("ids", "mask")]
everything = gather_object([{name: batch[name][row] for name in names} for row in range(rows)])


def padded(name: str) -> torch.Tensor:
    """(all rows, S): prompts on the left, completions on the right, by zeros."""
    values = [part[name] for part in everything]
    width = max(map(len, values))
    side = (lambda n: (n, 0)) if name.startswith("prompt") else (lambda n: (0, n))
    return torch.stack([torch.nn.functional.pad(row, side(width - len(row))) for row in values])


whole = {name: padded(name) for name in names}
correct = [score > 0.5 for score in made._scores.tolist()]
assert any(len(set(correct[group])) == 2 for group in groups_of(whole)), correct
expected = expected_weights(policy()[0], whole, correct)
first, mask = made.accelerator.process_index * rows, batch["completion_mask"].bool()
for row in range(rows):
    found = batch["advantages"][row, mask[row]]
    assert torch.allclose(found, base[row] * expected[first + row], rtol=2e-5, atol=1e-6), (row, found)
metrics = gather_object([{name: values[-1] for name, values in made._metrics["train"].items() if "shear/" in name}])
assert metrics[0] == metrics[1] and metrics[0]["shear/omega_mean"] > 0, metrics
made.train()
weights = gather_object([torch.cat([p.detach().flatten() for p in made.model.parameters()])])
assert torch.equal(*weights)
print("as shear_weights says", flush=True)
