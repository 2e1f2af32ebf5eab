"""Gates of the bookkeeping task (docs/bookkeeping.md): can it decide anything? Measured before rules are compared.

    examples/scripts/ledger_gates.sh               # trains the runs and calls this

- surprisal: AUC of the surprisal of first errors (misconceptions and slips) against benign twins, at most 0.6
- oracles: mean accuracy of oracle_from_error and oracle_first_wrong over uniform, at least 2 points each
- dose: oracle_first_wrong over itself with 40% of its blame on errors, the rest on decoys, at least 1 point
- place: oracle_first_wrong over as much blame spread evenly, at least 1 point
- contrast, of the paraphrased form alone: SHEAR's weights are 1.05 to 1.3 times as large in the last quarter as in the
  first, as in the paper. In incorrect rollouts they are at most 1.2 times as large as in correct ones.

The first and the last gate use the start policy's rollouts of held-out problems, with 95% bootstrap intervals over
problems. The others use the lab's finished runs, paired over seeds.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from measure import print_table, script_parser, write_json
from scipy.stats import rankdata

from openrlhf_shear.lab.placement import known_rollouts, traces
from openrlhf_shear.lab.policy import Policy, fingerprint, start_policy
from openrlhf_shear.lab.rollouts import sample
from openrlhf_shear.lab.runs import finished, jobs
from openrlhf_shear.lab.settings import TRIED, LabSettings
from openrlhf_shear.lab.tasks import task_of
from openrlhf_shear.lab.variants import parse_rules
from openrlhf_shear.lab.worth import worths
from openrlhf_shear.report.bootstrap import Bootstrap
from openrlhf_shear.report.findings import plain
from openrlhf_shear.report.provenance import provenance
from openrlhf_shear.rollouts.contrast import contrast

SEED = 2  # of the rollouts; differs from the lab's
DOSE, SPREAD = "oracle_first_wrong/hits=0.4", "oracle_first_wrong/matched"
ORACLES = ("oracle_from_error", "oracle_first_wrong")
RULES = ("uniform", *ORACLES, DOSE, SPREAD)
LIMITS = {"surprisal": 0.6, "oracles": 0.02, "dose": 0.01, "place": 0.01}
CONTRAST = {"last_first": (1.05, 1.3), "wrong_right": (0.0, 1.2)}  # limits of the paraphrased form


def auc(above: np.ndarray, below: np.ndarray) -> float:
    """Return the chance that a value of `above` is larger than a value of `below`; ties count half."""
    ranks = rankdata(np.concatenate([above, below]))[: len(above)]
    return float((ranks.sum() - len(above) * (len(above) + 1) / 2) / (len(above) * len(below)))


def surprises(settings: LabSettings, start: Path, problems: int) -> dict:
    """Return the surprisal (nats) of errors and twins in the start policy's rollouts, by problem, and counts."""
    policy, task = Policy(start, settings), task_of(settings)
    stories = task.problems(problems, SEED, "heldout")
    found = {"errors": [], "twins": [], "slips": 0, "correct": 0, "lucky": 0, "tokens": 0, "rollouts": 0}
    for at, problem in enumerate(stories):
        rollouts = sample(policy, [problem], settings.samples_per_prompt, settings, SEED * 1_000_003 + at)
        with torch.no_grad():
            log_probs = policy.read(rollouts.sequences, rollouts.mask).log_probs
        errors, twins = [], []
        for row, keep, lp in zip(rollouts.sequences[:, 1:], rollouts.mask, log_probs, strict=True):
            check = task.check(policy.tokenizer, problem, row[keep])
            surprisal = -lp[keep]
            twins += surprisal[list(check.twins)].tolist()
            found["correct"] += check.correct
            found["lucky"] += check.lucky
            found["tokens"] += len(surprisal)
            found["rollouts"] += 1
            if check.first_error is not None and check.first_error < len(surprisal):
                errors.append(surprisal[check.first_error].item())
                found["slips"] += not check.misconceived
        found["errors"].append(errors)
        found["twins"].append(twins)
    return found


def surprisal_gate(found: dict, draws: int = 2000) -> dict:
    """Return the AUC of errors against twins, with a bootstrap interval over problems."""
    rng, n = np.random.default_rng(0), len(found["errors"])
    parts = [[np.array(values) for values in found[side]] for side in ("errors", "twins")]

    def of(rows) -> float:
        return auc(*(np.concatenate([side[i] for i in rows]) for side in parts))

    drawn = [of(rng.integers(n, size=n)) for _ in range(draws)]
    errors, twins = (np.concatenate(side) for side in parts)
    return {
        "auc": of(range(n)),
        "low": float(np.quantile(drawn, 0.025)),
        "high": float(np.quantile(drawn, 0.975)),
        "errors": len(errors),
        "twins": len(twins),
        "slips_of_errors": found["slips"] / len(errors),
        "mean_nats": {"errors": float(errors.mean()), "twins": float(twins.mean())},
        "accuracy": found["correct"] / found["rollouts"],
        "lucky_of_correct": found["lucky"] / max(found["correct"], 1),
        "response_tokens": found["tokens"] / found["rollouts"],
        "problems": n,
        "rollouts": found["rollouts"],
    }


def worth_gates(settings: LabSettings, start: Path, folder: Path, first: int | None = None) -> dict:
    """Return the paired differences of mean accuracy for which there are runs, as the lab's table has them.

    `first` limits the runs to their first steps.
    """
    wanted = jobs(settings, parse_rules(",".join(RULES)), [TRIED], start, fingerprint(start), folder)
    runs = [replace(run, accuracy=run.accuracy[:first]) for run in finished(wanted)]
    over = {
        base: {worth.rule: worth.against.get("baseline") for worth in worths(runs, base)}
        for base in ("uniform", DOSE, SPREAD)
    }
    pairs = {rule: ("uniform", rule) for rule in RULES[1:]}
    pairs |= {"dose": (DOSE, "oracle_first_wrong"), "place": (SPREAD, "oracle_first_wrong")}
    return {name: plain(over[base][rule].mean) for name, (base, rule) in pairs.items() if over.get(base, {}).get(rule)}


def contrast_gate(settings: LabSettings, start: Path) -> dict:
    """Return the contrast of SHEAR's weights on the start policy's rollouts (`rollouts.contrast`)."""
    return plain(contrast(traces(settings, *parse_rules("shear"), known_rollouts(settings, start)), Bootstrap()))


def main() -> None:
    parser = script_parser(__doc__, required=True)
    tasks = "bookkeeping", "bookkeeping-paraphrased"
    parser.add_argument("--task", choices=tasks, default=tasks[0], help="form of the task (default: bookkeeping)")
    parser.add_argument("--runs", type=Path, required=True, help="the lab's --output")
    parser.add_argument("--start", default="shipped", help="folder of the start policy, or shipped (the default)")
    parser.add_argument("--steps", type=int, default=40, help="steps of the runs (default 40)")
    parser.add_argument("--first", type=int, help="how many of these steps count, as in the comparison (default: all)")
    parser.add_argument("--eval-problems", type=int, default=64, help="held-out problems of the runs (default 64)")
    parser.add_argument("--learning-rate", type=float, default=1e-4, help="learning rate of the runs (default 1e-4)")
    parser.add_argument(
        "--problems", type=int, default=128, help="held-out problems for the gates of rollouts, 8 each (default 128)"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    changes = {"steps": args.steps, "eval_problems": args.eval_problems, "learning_rate": args.learning_rate}
    settings = LabSettings(task=args.task, start=args.start, prompts=8, placement_prompts=args.problems, **changes)
    settings = replace(settings, window=32, stride=8, epsilon_rel=0.015)
    start = start_policy(settings)
    surprisal = surprisal_gate(surprises(settings, start, args.problems))
    contrasts = contrast_gate(settings, start)
    worth = worth_gates(settings, start, args.runs, args.first)
    passed = {"surprisal": surprisal["auc"] <= LIMITS["surprisal"]}
    if all(rule in worth for rule in ORACLES):
        passed["oracles"] = min(worth[rule]["mean"] for rule in ORACLES) >= LIMITS["oracles"]
    passed |= {gate: worth[gate]["mean"] >= LIMITS[gate] for gate in ("dose", "place") if gate in worth}
    if args.task == "bookkeeping-paraphrased":
        passed["contrast"] = all(low <= contrasts[of]["value"] <= high for of, (low, high) in CONTRAST.items())
    shown = {"surprisal (AUC)": {**surprisal, "mean": surprisal["auc"]}}
    shown |= {name: {**found, "mean": found["value"]} for name, found in contrasts.items()} | worth
    rows = [{"gate": name, **{of: found[of] for of in ("mean", "low", "high")}} for name, found in shown.items()]
    print_table("Gates", rows, {"gate": "", "mean": "value", "low": "low", "high": "high"})
    print(f"passed: {passed}")
    settings = settings.of_a_run()
    write_json(
        args.output,
        {
            **provenance(),
            "limits": LIMITS | CONTRAST,
            "settings": settings,
            "first": args.first,
            "policy": fingerprint(start),
        }
        | {"surprisal": surprisal, "contrast": contrasts, "worth": worth, "passed": passed},
    )


if __name__ == "__main__":
    main()
