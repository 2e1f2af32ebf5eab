"""results.json of an evaluation, computed again from generations.jsonl by plain Python that shares no code with it.

    python benchmarks/recompute_results.py runs/eval

Prints the scores it finds as JSON and a line for each that differs from results.json; exits with 1 if one does.
Averages, standard errors and counts come from their definitions, pass@k from every subset of k samples where there are
few enough.
"""

import json
import math
import sys
from collections import Counter, defaultdict
from itertools import combinations
from pathlib import Path

TOLERANCE = 1e-12  # float64 sums in another order
MOST_SUBSETS = 20_000


def main() -> None:
    folder = Path(sys.argv[1])
    written = json.loads((folder / "results.json").read_text())["benchmarks"]
    problems: dict = defaultdict(lambda: defaultdict(list))
    for line in (folder / "generations.jsonl").read_text().splitlines():
        row = json.loads(line)
        problems[row["benchmark"]][row["question"]].append(row)
    found = {name: scores(list(of.values()), written[name]["k"]) for name, of in problems.items()}
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


def scores(problems: list[list[dict]], k: int) -> dict:
    rows = [row for problem in problems for row in problem]
    graded = [row for row in rows if row["verdict"]["correct"] is not None]
    outcomes = [[r["verdict"]["correct"] for r in p if r["verdict"]["correct"] is not None] for p in problems]
    means = [sum(of) / len(of) for of in outcomes if of]
    mean = sum(means) / len(means)
    found = {
        "problems": len(problems),
        "completions": len(rows),
        "graded": len(graded),
        f"avg@{k}": mean,
        "response_tokens_mean": sum(row["tokens"] for row in graded) / len(graded),
        "truncated": sum(row["truncated"] for row in graded),
        "timeouts": sum(row["verdict"]["reason"] == "timeout" for row in graded),
        "reasons": dict(Counter(row["verdict"]["reason"] for row in graded if not row["verdict"]["correct"])),
    }
    if len(means) > 1:
        variance = sum((value - mean) ** 2 for value in means) / (len(means) - 1)
        found["stderr"] = math.sqrt(variance / len(means))
    if all(len(of) == k for of in outcomes) and math.comb(k, k // 2) <= MOST_SUBSETS:
        for some in {1, k}:
            drawn = [[any(subset) for subset in combinations(of, some)] for of in outcomes]
            found[f"pass@{some}"] = sum(sum(of) / len(of) for of in drawn) / len(drawn)
    if any(row["verdict"]["lenient"] is not None for row in graded):
        lenient = [[r["verdict"]["lenient"] for r in p if r["verdict"]["correct"] is not None] for p in problems]
        found[f"lenient_avg@{k}"] = sum(sum(of) / len(of) for of in lenient if of) / len(means)
    return found


def same(here: object, there: object) -> bool:
    if isinstance(here, float) and isinstance(there, float):
        return abs(here - there) <= TOLERANCE * max(1, abs(here))
    return here == there


if __name__ == "__main__":
    main()
