"""results.json of an evaluation, recomputed from generations.jsonl by plain Python that shares no code with it.

    python benchmarks/recompute_results.py runs/eval

Prints the scores as JSON and a line for each that differs from results.json; exits with 1 if any differs. Averages,
standard errors and counts come from their definitions, pass@k from every subset of k samples where there are few
enough. maj@k compares answers as texts, so it is computed only where two different texts cannot mean the same.
"""

import json
import math
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

TOLERANCE = 1e-12  # float64 sums in another order
MOST_SUBSETS = 20_000


def main() -> None:
    folder = Path(sys.argv[1])
    written = json.loads((folder / "results.json").read_text())["benchmarks"]
    found = {name: scores(problems, written[name]["k"]) for name, problems in read(folder).items()}
    print(json.dumps(found, indent=1))
    wrong = [
        f"{name} {what}: {value} here, {written[name].get(what)} in results.json"
        for name, mine in found.items()
        for what, value in mine.items()
        if not same(value, written[name].get(what))
    ]
    wrong += [f"{name} is in results.json only" for name in written if name not in found]
    print("\n".join(wrong) or f"{sum(map(len, found.values()))} numbers agree")
    sys.exit(bool(wrong))


def read(folder: Path) -> dict[str, list[list[dict]]]:
    """Return the rows of each problem of each benchmark."""
    lines = {name: (folder / f"{name}.jsonl").read_text().splitlines() for name in ("questions", "generations")}
    problems: dict[str, dict[str, list]] = {}
    for row in map(json.loads, lines["questions"]):
        problems.setdefault(row["benchmark"], {})[row["id"]] = []
    for row in map(json.loads, lines["generations"]):
        problems[row["benchmark"]][row["question"]].append(row)
    return {name: list(of.values()) for name, of in problems.items()}


def scores(problems: list[list[dict]], k: int) -> dict:
    rows = [row for problem in problems for row in problem]
    graded = list(filter(is_graded, rows))
    kept = [of for problem in problems if (of := [row["verdict"] for row in filter(is_graded, problem)])]
    lost = [row["verdict"] or {"failure": "not graded"} for row in rows if not is_graded(row)]
    means = [mean(verdict["correct"] for verdict in of) for of in kept]
    reasons = Counter(row["verdict"]["reason"] for row in graded if not row["verdict"]["correct"])
    found = {
        "problems": len(problems),
        "k": k,
        "completions": len(rows),
        "missing": len(problems) * k - len(rows),
        "graded": len(graded),
        "failed": Counter(verdict["failure"] or "no reason given" for verdict in lost),
        "left_out_problems": len(problems) - len(kept),
        f"avg@{k}": mean(means),
        "response_tokens_mean": mean(row["tokens"] for row in graded),
        "truncated": sum(row["truncated"] for row in graded),
        "truncated_fraction": mean(row["truncated"] for row in graded),
        "timeouts": reasons["timeout"],
        "reasons": reasons,
        "too_few_samples": {},
    }
    if len(means) > 1:
        variance = sum((value - mean(means)) ** 2 for value in means) / (len(means) - 1)
        found["stderr"] = math.sqrt(variance / len(means))
    for some in sorted({*(2**power for power in range(k.bit_length())), k}):
        enough = [of for of in kept if len(of) >= some]
        if len(enough) < len(kept):
            found["too_few_samples"][f"pass@{some}"] = len(kept) - len(enough)
        if all(math.comb(len(of), some) <= MOST_SUBSETS for of in enough):
            found[f"pass@{some}"] = mean(mean(map(any_correct, combinations(of, some))) for of in enough)
    verdicts = [verdict for of in kept for verdict in of]
    if any(verdict["lenient"] is not None for verdict in verdicts):
        found[f"lenient_avg@{k}"] = mean(mean(verdict["lenient"] for verdict in of) for of in kept)
        if k > 1 and all(str(verdict["answer"] or "0").isdecimal() for verdict in verdicts):
            found[f"maj@{k}"] = mean(map(majority, kept))
    return found


def is_graded(row: dict) -> bool:
    return row["verdict"] is not None and row["verdict"]["correct"] is not None


def mean(values) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def any_correct(verdicts: tuple[dict, ...]) -> bool:
    return any(verdict["correct"] for verdict in verdicts)


def majority(verdicts: list[dict]) -> float:
    """Return whether the most frequent answer is correct; the mean in a tie, 0 without an answer."""
    counts = Counter(verdict["answer"] for verdict in verdicts if verdict["answer"] is not None)
    top = [answer for answer, count in counts.items() if count == max(counts.values())]
    return mean(mean(v["correct"] for v in verdicts if v["answer"] == answer) for answer in top) or 0.0


def same(here: object, there: object) -> bool:
    if isinstance(here, float) and isinstance(there, float):
        return abs(here - there) <= TOLERANCE * max(1, abs(here))
    return here == there


if __name__ == "__main__":
    main()
