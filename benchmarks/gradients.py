"""Compare the gradient that reaches the optimizer with a float32 pass over the whole batch, for each way to cut it.

Every row is a real update on the CPU: the fork's command line, actor, DeepSpeed engine and fillers, in one or two
processes. Adam's moments are off and its epsilon is far above any gradient. So an optimizer step moves the float32
master weights by -lr g / (|g| + eps), and g is read from the weights: it is the applied gradient. It is compared with
the gradient of a loss written here, of the plain Hugging Face model in float32. That one takes a rollout at a time,
without padding, packing, micro-batches or ranks. The metrics of the update are compared in the same way.

    python benchmarks/gradients.py [--rows dynamic] [--output benchmarks/results/gradients.json]

`gradient_rows.yaml` has the ways to cut a batch.
"""

import functools
import itertools
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import measure
import ranks
import torch
import vision
import yaml
from torch.func import functional_call
from tqdm import tqdm
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

import openrlhf_shear.tasks.arithmetic
from openrlhf_shear.tasks.arithmetic.problems import make_problems, write_dataset
from openrlhf_shear.tasks.arithmetic.solutions import write_solution

POLICY = Path(openrlhf_shear.tasks.arithmetic.__file__).parent / "shipped_policy"
REWARD = POLICY.parent / "arithmetic.py"
METRIC = 0.02  # tolerance, relative to the metric or to `_floor` where that is larger
RATE, EPSILON = 10.0, 1000.0  # an optimizer step moves weights by a hundredth of the gradient
CLIP = (0.2, 0.3)
LORA_RANK, LORA_ALPHA, KL, ENTROPY = 8, 16, 0.1, 0.01  # as the flags of `TABLE` set them
TABLE = yaml.safe_load(Path(__file__).with_name("gradient_rows.yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Row:
    """A way to cut a batch."""

    name: str
    flags: str = ""
    rollouts: int = 16
    ranks: int = 1
    role: str = "policy"
    offload: bool = False
    bfloat16: bool = False  # as training runs; else float32, where only the order of sums differs
    upstream: bool = False  # as OpenRLHF 0.11.2, DeepSpeed is not told where a step ends; the row must fail
    probed: bool = True  # whether the run's own probe is on
    launch: str = ""  # rows of the same launch share processes
    sees: bool = False  # the model of `vision.py`, and a picture in every prompt

    @property
    def limits(self) -> tuple[float, float]:
        """A row passes with a cosine above the first and a norm within the second; both are widened measurements.

        In float32 every row had 1.000000 and 1.0000. In bfloat16 the worst had 0.9982 and 1.024; a plain bfloat16 pass
        of the same model, one rollout at a time, has 0.9992 and 1.019.
        """
        return (0.995, 0.05) if self.bfloat16 else (0.9999, 0.001)

    @property
    def processes(self) -> str:
        return self.launch or f"{'images' * self.sees}ranks{self.ranks}"


def _rows(part: str) -> tuple[Row, ...]:
    words = {name: flags.format(**TABLE["words"]) for name, flags in TABLE["words"].items()}
    return tuple(Row(**row | {"flags": row.get("flags", "").format(**words)}) for row in TABLE[part])


ROWS, UPSTREAM = _rows("rows"), _rows("upstream")


# ── The batch ──


def make_rollouts(count: int = 16, seed: int = 0, sees: bool = False) -> list[dict]:
    """Return rollouts with every number that an update reads; with `sees`, of prompts with a picture.

    Responses have 14 to 77 tokens, some with a gap of tokens that are not theirs. Log-ratios are small, or far outside
    the clip range, so that rounding moves none across its border.
    """
    tokenizer, rng = AutoTokenizer.from_pretrained(vision.saved() if sees else POLICY), random.Random(seed)
    model, made = policy_model(sees), []
    draw = torch.Generator().manual_seed(seed)
    for index, problem in enumerate(make_problems(count, seed=seed + 7)):
        text = vision.PICTURE_READ * sees + problem.prompt
        seen = vision.pixels("abcd"[index % 4]) if sees else None
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        response = tokenizer(write_solution(problem, rng), add_special_tokens=False)["input_ids"]
        response = [*response, tokenizer.eos_token_id][: rng.choice((14, 30, 60, 110))]
        tokens = torch.tensor(prompt + response)
        actions = torch.arange(1, len(tokens)) >= len(prompt)
        if index % 4 == 3:
            actions[len(prompt) + 3 : len(prompt) + 7] = False  # a tool's output
        with torch.no_grad():
            now = log_probs(model(tokens[None], **model_inputs(tokens, seen)).logits[0].double(), tokens)
        noise = 0.03 * torch.randn(now.shape, generator=draw).clamp(-2, 2)
        far = torch.rand(now.shape, generator=draw)
        noise = torch.where(far < 0.05, 0.6, torch.where(far > 0.95, -0.6, noise))
        made.append(
            {
                **{"index": index, "tokens": tokens, "actions": actions, "reward": float(index % 3 == 0)},
                "off_policy": noise.float(),  # distance of the old log-probs from those at the start
                "action_log_probs": (now + noise).float(),
                "base_action_log_probs": (now + 0.3 * torch.randn(now.shape, generator=draw)).float(),
                "advantages": (1.0, -0.6, -0.9, 0.5)[index % 4] * (0.5 + torch.rand(now.shape, generator=draw)),
                "values": torch.randn(now.shape, generator=draw),
                "returns": torch.randn(now.shape, generator=draw),
                **{"kl": float(torch.rand((), generator=draw)), "seen": seen},
            }
        )
    return made


@functools.cache
def plain_model(kind, folder: Path = POLICY) -> torch.nn.Module:
    """Return the built-in policy, or another, by Hugging Face alone, float32."""
    disable_progress_bar()
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def policy_model(sees: bool) -> torch.nn.Module:
    return plain_model(AutoModelForImageTextToText, vision.saved()) if sees else plain_model(AutoModelForCausalLM)


def model_inputs(tokens: torch.Tensor, seen: dict | None) -> dict[str, torch.Tensor]:
    """Return what a forward pass of (T,) tokens gets beside them."""
    return {} if seen is None else seen | {"mm_token_type_ids": vision.is_image(tokens)[None]}


def log_probs(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return (T - 1,) log-probs of all tokens but the first, from (T, V)."""
    return logits[:-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]


# ── The oracle: one float32 pass over the whole batch ──


@dataclass(frozen=True)
class Oracle:
    """The expected result of an optimizer step."""

    gradient: dict[str, torch.Tensor]
    sums: dict[str, tuple[float, float]]  # metric -> (sum over its units, units)


def oracle(row: Row, weights: dict[str, torch.Tensor], batch: Sequence[dict]) -> Oracle:
    """Return the gradient of the batch's loss at `weights`, in the row's precision, and the metrics of this step."""
    precision = torch.bfloat16 if row.bfloat16 else torch.float32
    variables = {name: value.to(precision).float().clone().requires_grad_() for name, value in weights.items()}
    terms = critic_terms if row.role == "critic" else policy_terms
    loss, sums = terms(row, variables, batch)
    loss.backward()
    gradient = {name: value.grad for name, value in variables.items()}
    norm = torch.cat([part.flatten() for part in gradient.values()]).double().norm().item()
    prefix = "critic" if row.role == "critic" else "actor"
    numbers = {name: tuple(float(torch.as_tensor(part).detach()) for part in pair) for name, pair in sums.items()}
    return Oracle(gradient, numbers | {f"{prefix}_grad_norm": (norm, 1.0)})


def policy_terms(row: Row, variables: dict, batch: Sequence[dict]) -> tuple[torch.Tensor, dict]:
    """Return PPO's clipped loss (or GSPO-token's) with the terms that the row's flags add, and the metrics."""
    model, weights = policy_model(row.sees), with_adapters(variables)
    per_token, entropies, kls, ratios, clipped, lengths = [], [], [], [], [], []
    for rollout in batch:
        mask, tokens = rollout["actions"], rollout["tokens"]
        inputs = model_inputs(tokens, rollout.get("seen"))
        logits = functional_call(model, weights, (tokens[None],), inputs).logits[0]
        now, log_softmax = log_probs(logits, tokens)[mask], logits[:-1].log_softmax(-1)
        entropy = -(log_softmax.exp() * log_softmax).sum(-1)[mask]
        old, advantages = rollout["action_log_probs"][mask], rollout["advantages"][mask]
        if "entropy_adv" in row.flags:  # A + min(0.4 H, |A| / 2)
            advantages = advantages + torch.minimum(0.4 * entropy.detach(), advantages.abs() / 2)
        ratio = (now - old).exp()
        if "gspo" in row.flags:  # GSPO-token: the rollout's ratio, whose gradient at a token is that of the token
            ratio = (now - old).mean().exp().detach() * (now - now.detach()).exp()
        held = ratio.clamp(1 - CLIP[0], 1 + CLIP[1])
        per_token.append(-torch.minimum(ratio * advantages, held * advantages))
        clipped.append((held * advantages < ratio * advantages).float())
        ratios.append(old - now)
        gap = rollout["base_action_log_probs"][mask] - now
        kls.append(gap.exp() - 1 - gap)
        entropies.append(entropy)
        lengths.append(float(mask.sum()))
    tokens, count = sum(lengths), float(len(batch))
    by_sequence = "gspo" in row.flags or "seq-mean" in row.flags
    of_loss = [values.mean() if by_sequence else values.sum() for values in per_token]
    units = count if by_sequence else tokens
    loss = sum(of_loss) / units
    sums = {"policy_loss": (sum(of_loss), units)}
    for name, values in (("ppo_clip_ratio", clipped), ("ppo_kl", ratios)):
        sums[name] = (torch.cat(values).sum(), tokens)
    if "entropy_coef" in row.flags:
        sums["entropy_loss"] = (torch.cat(entropies).sum(), tokens)
    if "use_loss" in row.flags:
        loss = loss + KL * torch.cat(kls).sum() / tokens - ENTROPY * torch.cat(entropies).sum() / tokens
        sums["kl"] = (torch.cat(kls).sum(), tokens)
    else:
        sums["kl"] = (sum(length * rollout["kl"] for length, rollout in zip(lengths, batch, strict=True)), tokens)
    sums["reward"] = (sum(rollout["reward"] for rollout in batch), count)
    sums["response_length"] = (tokens, count)
    return loss, sums


def with_adapters(variables: dict) -> dict:
    """Return weights by the plain model's names: with LoRA, W + (alpha / r) B A."""
    if not any("lora_" in name for name in variables):
        return variables
    base, merged = dict(plain_model(AutoModelForCausalLM).named_parameters()), {}
    for name in variables:
        if "lora_A" in name:
            plain = name.removeprefix("base_model.model.").replace("lora_A.default.", "")
            change = variables[name.replace("lora_A", "lora_B")] @ variables[name]
            merged[plain] = base[plain].detach() + LORA_ALPHA / LORA_RANK * change
    return merged


def critic_terms(row: Row, variables: dict, batch: Sequence[dict]) -> tuple[torch.Tensor, dict]:
    """Return half the mean over tokens of the larger of the clipped and the plain squared error, and the metrics."""
    base, head = plain_model(AutoModel), next(name for name in variables if not name.startswith("model."))
    weights = {name.removeprefix("model."): value for name, value in variables.items() if name != head}
    losses, values = [], []
    for rollout in batch:
        mask = rollout["actions"]
        hidden = functional_call(base, weights, (rollout["tokens"][None],)).last_hidden_state[0]
        value = (hidden @ variables[head].T)[:-1, 0][mask]
        old, returns = rollout["values"][mask], rollout["returns"][mask]
        clipped = old + (value - old).clamp(-0.5, 0.5)
        losses.append(0.5 * torch.maximum((value - returns) ** 2, (clipped - returns) ** 2))
        values.append(value)
    losses, values = torch.cat(losses), torch.cat(values)
    return losses.mean(), {"critic_loss": (losses.sum(), len(losses)), "values": (values.sum(), len(values))}


# ── One row beside the oracle ──


def applied_gradients(weights: Sequence[dict]) -> list[dict[str, torch.Tensor]]:
    """Return the gradient of each optimizer step, from the weights before and after it."""
    found = []
    for before, after in itertools.pairwise(weights):
        moved = {name: (before[name].double() - after[name].double()) for name in before}
        found.append({name: move * EPSILON / (RATE - move.abs()) for name, move in moved.items()})
    return found


def compare(row: Row, done: dict, rollouts: Sequence[dict]) -> dict:
    """Return the row's numbers: the worst cosine and norm over its optimizer steps, and the metrics that are off."""
    if "error" in done:
        return {"row": row.name, "passed": False, "error": done["error"]}
    known = {tuple(rollout["tokens"].tolist()): rollout for rollout in rollouts[: row.rollouts]}
    batches = [[known[tuple(tokens)] for tokens in step if tuple(tokens) in known] for step in done["rows"]]
    epochs = 2 if "max_epochs 2" in row.flags else 1
    trained = sorted(rollout["index"] for batch in batches for rollout in batch)
    complete = trained == sorted(list(range(row.rollouts)) * epochs)
    cosines, norms, totals = [], [], {}
    for batch, before, found in zip(batches, done["weights"], applied_gradients(done["weights"]), strict=False):
        wanted = oracle(row, before, batch)
        for name, (value, units) in wanted.sums.items():
            total = totals.setdefault(name, [0.0, 0.0])
            total[0], total[1] = total[0] + value, total[1] + units
        mine, its = (flat(gradient, before) for gradient in (found, wanted.gradient))
        cosines.append(torch.nn.functional.cosine_similarity(mine, its, 0).item())
        norms.append((mine.norm() / its.norm()).item())
    wanted = {name: value / units for name, (value, units) in totals.items()}
    off = {
        name: (done["status"].get(name), value)
        for name, value in wanted.items()
        if not abs(done["status"].get(name, float("nan")) - value) <= METRIC * max(abs(value), _floor(name))
    }
    cosine, norm = row.limits
    passed = complete and min(cosines) > cosine and max(abs(n - 1) for n in norms) < norm and not off
    return {
        **{"row": row.name, "passed": passed, "optimizer_steps": len(cosines), "all_rollouts": complete},
        **{"cosine": min(cosines), "norm": max(norms, key=lambda norm: abs(norm - 1))},
        **{"metrics": len(wanted), "off": off},
    }


def _floor(name: str) -> float:
    """Return the least scale for a metric's error: near 0 a bfloat16 log-prob is off by some 0.01."""
    return {"ppo_kl": 0.1, "policy_loss": 0.1, "values": 0.1}.get(name, 1e-3)


def flat(gradient: dict, like: dict) -> torch.Tensor:
    return torch.cat([gradient[name].flatten().double() for name in like])


# ── Running ──


def run(rows: Sequence[Row], folder: Path) -> Iterator[dict]:
    """Yield `compare` of each row; rows of a launch share processes, which end after the last row."""
    write_dataset(folder / "train.jsonl", 16, seed=0)
    shapes = {name: value.shape for name, value in plain_model(AutoModelForCausalLM).named_parameters()}
    for launch in dict.fromkeys(row.processes for row in rows):
        here = [row for row in rows if row.processes == launch]
        rollouts = make_rollouts(sees=here[0].sees)
        asked = {"rows": [asdict(row) | {"line": line(row, folder)} for row in here], "rollouts": rollouts}
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(measure.free_port())}
        asked |= {"shapes": shapes, "environment": address}
        torch.save(asked, folder / f"{launch}.pt")
        try:
            ranks.run_ranks("gradient_worker", here[0].ranks, launch, folder)
        except (RuntimeError, TimeoutError) as error:
            yield from ({"row": row.name, "passed": False, "error": str(error)} for row in here)
            continue
        for row in here:
            yield compare(row, torch.load(folder / launch / f"{row.name}.pt", weights_only=False), rollouts)


def line(row: Row, folder: Path) -> list[str]:
    """Return the row's command line."""
    estimator = "entropy_adv" if "entropy_adv" in row.flags else "group_norm"
    model = vision.saved() if row.sees else POLICY
    words = [
        *("--device", "cpu", "--algo.advantage.estimator", estimator, "--algo.kl.init_coef", "0"),
        *("--actor.model_name_or_path", str(model), "--reward.remote_url", str(REWARD), "--vllm.enforce_eager"),
        *("--data.prompt_dataset", str(folder / "train.jsonl"), "--data.input_key", "prompt"),
        *("--data.label_key", "answer", "--data.max_len", "256", "--ckpt.output_dir", str(folder / "model")),
        *("--ckpt.path", str(folder / "ckpt"), "--vllm.num_engines", "1", "--actor.num_gpus_per_node", str(row.ranks)),
        *("--rollout.batch_size", "4", "--rollout.n_samples_per_prompt", "4", "--train.batch_size", "8"),
        *("--train.micro_batch_size", "2", "--actor.eps_clip_low_high", str(CLIP[0]), str(CLIP[1])),
        *(word for model in ("actor", "critic") for word in _plain_descent(model)),
        *row.flags.split(),
    ]
    if row.role == "critic":
        words += ["--critic.model_name_or_path", str(POLICY), "--critic.value_clip", "0.5"]
        words += ["--critic.num_gpus_per_node", str(row.ranks), "--algo.advantage.estimator", "gae"]
    return words


def _plain_descent(model: str) -> tuple[str, ...]:
    return (
        *(f"--{model}.adam.lr", str(RATE), f"--{model}.adam.betas", "0", "0", f"--{model}.adam.eps", str(EPSILON)),
        *(f"--{model}.max_norm", "0", f"--{model}.lr_scheduler", "constant", f"--{model}.lr_warmup_ratio", "0"),
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = measure.script_parser(__doc__)
    parser.add_argument("--rows", default="", metavar="TEXT", help="only rows with this text in the name")
    args = parser.parse_args(argv)
    rows = [row for row in (*ROWS, *UPSTREAM) if args.rows in row.name]
    if not rows:
        names = "; ".join(row.name for row in (*ROWS, *UPSTREAM))
        parser.error(f"--rows: no row has {args.rows!r} in its name; they are: {names}")
    with tempfile.TemporaryDirectory() as folder:
        found = list(tqdm(run(rows, Path(folder)), total=len(rows), leave=False))
    columns = {"row": "way to cut the batch", "optimizer_steps": "steps", "all_rollouts": "every rollout once"}
    columns |= {"cosine": "cosine", "norm": "norm / oracle's", "metrics": "metrics compared", "passed": "passed"}
    shown = []
    for row in found:
        if problem := row.get("error") or row.get("off"):
            print(f"{row['row']}: {problem}")
        exact = {"cosine": f"{row['cosine']:.6f}", "norm": f"{row['norm']:.4f}"} if "cosine" in row else {}
        shown.append(row | exact)
    measure.print_table("The gradient that was applied, beside one float32 pass", shown, columns)
    if args.output:
        limits = {"float32": Row("").limits, "bfloat16": Row("", bfloat16=True).limits}
        measure.write_json(args.output, {"rows": found, "limits": limits, **measure.environment()})
    wrong = [row["row"] for row in found if row["passed"] == (row["row"] in {known.name for known in UPSTREAM})]
    print(f"wrong: {'; '.join(wrong)}" if wrong else "every row passes, and none of OpenRLHF 0.11.2's does")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
