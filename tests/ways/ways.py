"""The same rollouts by every way into a training run.

`tests/data/same_rollouts.json` has them with their weights: `shear_weights` of the states that enter the LM head of the
shipped policy in plain forward passes, one sequence at a time.

    python tests/ways/ways.py                    writes the file anew
    python tests/ways/ways.py "cluster fork"     says how far the weights of a way are from it; needs its packages

A way is a function from the file's rows to their weights, a tensor (T_i,) each. The model of every training run has
dropout in its attention: the file's states are those of evaluation.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit import shear_weights
from openrlhf_shear.tasks.arithmetic.policy import load_policy
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR, make_problems

FILE = Path(__file__).parents[1] / "data/same_rollouts.json"
SIZE = 4
DROPOUT = 0.1
CREDIT, CONFIG = "shear/window=8/stride=4", ShearConfig(window=8, stride=4)


def rows() -> list[dict]:
    """Group after group: `prompt`, `response` ids, `mask` (0: an environment's tokens), `score`, `uid`, `weights`."""
    return json.loads(FILE.read_text())


def difference(way: str) -> tuple[float, int]:
    """The largest difference between a way's weights and the file's, and how many tokens there are."""
    given = rows()
    found = WAYS[way](given)
    expected = [torch.tensor(row["weights"]) for row in given]
    assert [len(weights) for weights in found] == [len(weights) for weights in expected]
    return (torch.cat(found) - torch.cat(expected)).abs().max().item(), len(torch.cat(expected))


def by_itself(given: list[dict]) -> list[torch.Tensor]:
    """`shear_weights` on states of plain forward passes."""
    model, _ = load_policy(POLICY_DIR)
    states = []
    for row in given:
        kept: list[torch.Tensor] = []
        handle = model.get_output_embeddings().register_forward_pre_hook(lambda module, x, kept=kept: kept.append(x[0]))
        with torch.no_grad():
            model(input_ids=torch.tensor([row["prompt"] + row["response"]]))
        handle.remove()
        states.append(kept[0][0, len(row["prompt"]) :][torch.tensor(row["mask"]).bool()])
    correct = [row["score"] > 0.5 for row in given]
    groups = [slice(at, at + SIZE) for at in range(0, len(given), SIZE)]
    return [weight for group in groups for weight in shear_weights(states[group], correct[group], CONFIG).weights]


def by_the_fork(given: list[dict]) -> list[torch.Tensor]:
    """Through the policy actor's forward pass and collector, without Ray and DeepSpeed around them."""
    from openrlhf_shear.train.cpu import backend as cpu_backend

    if not torch.cuda.is_available():
        cpu_backend.install()
    from openrlhf.models import Actor

    from openrlhf_shear.config.names import parse_rule
    from openrlhf_shear.config.spec import credit_spec
    from openrlhf_shear.credit.apply import token_advantages
    from openrlhf_shear.credit.groups import CreditRequest, GroupCollector
    from openrlhf_shear.credit.registry import load_rule
    from openrlhf_shear.train.update.actor import ShearPolicyActor

    class Engine(torch.nn.Module):  # in DeepSpeed's place
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *args, **kwargs):
            return self.module(*args, **kwargs)

    made = ShearPolicyActor.__new__(ShearPolicyActor)
    made.actor = Actor(Engine(dropping(load_policy(POLICY_DIR)[0])))
    made.actor.packing_samples = False
    made.strategy, made._rank = SimpleNamespace(ring_attn_group=None), 0
    made._rule = load_rule(credit_spec(parse_rule(CREDIT)))
    made._collector = GroupCollector(made._rule)
    for first in range(0, len(given), 3):  # micro-batches that cut groups
        some = list(enumerate(given))[first : first + 3]
        request = CreditRequest(
            rollouts=tuple(i for i, _ in some),
            groups=tuple(i // SIZE for i, _ in some),
            rewards=tuple(row["score"] for _, row in some),
            correct=tuple(row["score"] >= 0.5 for _, row in some),
            group_size=SIZE,
        )
        tokens = [row["prompt"] + row["response"] for _, row in some]
        masks = [[0] * (len(row["prompt"]) - 1) + row["mask"] for _, row in some]  # column j is of token j + 1
        made.forward(_padded(tokens), _padded(masks), _padded([[1] * len(ids) for ids in tokens]), credit=request)
    ones = {i: torch.ones(sum(row["mask"])) for i, row in enumerate(given)}
    assert all(module.training for module in made.actor.modules())  # as in a training run
    credits = token_advantages(made._rule, made.take_group_credits(), ones)
    return [credits[i].advantages for i in range(len(given))]


def by_trl(given: list[dict]) -> list[torch.Tensor]:
    """Through a generation batch of the trainer, whose completions are these."""
    import tempfile

    from known import Known, batch_of, trainer_on

    from openrlhf_shear.integrations.trl import ShearGRPOTrainer

    class Given(Known, ShearGRPOTrainer):
        def responses(self, prompts):
            return [given[row]["response"] for row in range(len(prompts))]

        def tool_masks(self, ids):
            return [row["mask"] for row in given]

    def scores(prompts, completions, **_):
        return [row["score"] for row in given]

    _, tokenizer = load_policy(POLICY_DIR)
    prompts = [tokenizer.decode(row["prompt"]) for row in given[::SIZE]]
    settings = {"num_generations": SIZE, "shuffle_dataset": False, "scale_rewards": "none"}
    settings |= {"per_device_train_batch_size": len(given) // 2, "gradient_accumulation_steps": 2}
    with tempfile.TemporaryDirectory() as folder:
        made = trainer_on(folder, Given, CREDIT, scores, prompts=prompts, **settings)
        dropping(made.model)
        batch = batch_of(made)
    assert all(module.training for module in made.model.modules())
    assert tokenizer.decode(batch["prompt_ids"][0][batch["prompt_mask"][0].bool()]) == prompts[0]
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    score = torch.tensor([row["score"] for row in given]).view(-1, SIZE)
    base = (score - score.mean(1, keepdim=True)).flatten()
    weights = []
    for row, advantage in enumerate(base):  # a group of one outcome has advantages of 0, and weights of 1
        found = batch["advantages"][row, mask[row]]
        weights.append(found / advantage if advantage else found + 1)
    return weights


def by_verl(given: list[dict]) -> list[torch.Tensor]:
    """Through the FSDP worker's log-probs, and the estimator on verl's GRPO advantages of 1 and -1."""
    from cpu_worker import batch, worker

    from openrlhf_shear.integrations.verl import RuleRequest

    made = worker()
    dropping(made.actor.engine.module)
    output = made.compute_log_prob(batch(given, credit=RuleRequest(CREDIT, 0.5, 1)))
    rows = zip(output["credit_positive"].unbind(), given, strict=True)
    return [weights[torch.tensor(row["mask"]).bool()] for weights, row in rows]


WAYS = {"shear_weights": by_itself, "cluster fork": by_the_fork, "TRL": by_trl, "verl": by_verl}


def dropping(model: torch.nn.Module) -> torch.nn.Module:
    """The model with dropout in every attention, in training mode."""
    attentions = [module for module in model.modules() if hasattr(module, "attention_dropout")]
    assert attentions
    for attention in attentions:
        attention.attention_dropout = DROPOUT
    return model.train()


def _padded(values: list[list[int]]) -> torch.Tensor:
    tensors = [torch.tensor(value) for value in values]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)


def _write() -> None:
    from openrlhf_shear.tasks.arithmetic.sampling import response_text, sample_ids
    from openrlhf_shear.tasks.arithmetic.solutions import check

    model, tokenizer = load_policy(POLICY_DIR)
    asked = [problem for problem in make_problems(4, 10_000) for _ in range(SIZE)]
    responses = sample_ids(model, tokenizer, [problem.prompt for problem in asked], seed=0)
    given = []
    for i, (problem, ids) in enumerate(zip(asked, responses, strict=True)):
        mask = [1] * len(ids)
        if i == 1:
            mask[10:20] = [0] * 10
        score = float(check(problem, response_text(tokenizer, ids)).correct)
        prompt = tokenizer.encode(problem.prompt, add_special_tokens=False)
        given.append({"prompt": prompt, "response": ids.tolist(), "mask": mask, "score": score, "uid": f"p{i // SIZE}"})
    weights = by_itself(given)
    rounded = ([round(value, 7) for value in of_row.tolist()] for of_row in weights)
    lines = [json.dumps(row | {"weights": of_row}) for row, of_row in zip(given, rounded, strict=True)]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"{len(given)} rollouts, {sum(map(len, weights))} tokens: {FILE}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for folder in ("trl", "verl"):
        sys.path.insert(0, str(Path(__file__).parents[1] / folder))
    if not sys.argv[1:]:
        _write()
    for way in sys.argv[1:]:
        worst, tokens = difference(way)
        print(f"| {way} | {worst:.1e} | {tokens} |", flush=True)
