"""The rows of several data sets in the order of training, and what tells two such lists apart."""

import hashlib
import itertools
import json
from collections.abc import Iterable

COUNT, CONTENTS = "number of prompts", "digest of the prompts, their labels and their order"


def blended(sets: list[list], probabilities: str | None, seed: int) -> list:
    """One after the other, or with probabilities interleaved by `datasets`, which is given numbers in place of rows."""
    if probabilities is None:
        return list(itertools.chain.from_iterable(sets))
    from datasets import Dataset as Numbers
    from datasets import interleave_datasets

    numbered = [
        Numbers.from_dict({"set": [number] * len(rows), "row": range(len(rows))}) for number, rows in enumerate(sets)
    ]
    shares = [float(share) for share in probabilities.split(",")]
    order = interleave_datasets(numbered, probabilities=shares, seed=seed, stopping_strategy="all_exhausted")
    return [sets[one["set"]][one["row"]] for one in order]


def of_rows(rows: Iterable[dict], input_key: str, label_key: str | None) -> dict[str, object]:
    """How many rows there are, and a digest of their prompts and labels, one after the other; images are not in it."""
    digest, count = hashlib.sha256(), 0
    for row in rows:
        asked = [row.get(input_key), None if label_key is None else row.get(label_key)]
        digest.update(json.dumps(asked, default=str).encode() + b"\n")
        count += 1
    return {COUNT: count, CONTENTS: digest.hexdigest()[:16]}
