"""Order of the rows of several data sets in training, and a digest by which two such lists can be compared."""

import hashlib
import itertools
import json
from collections.abc import Iterable

from openrlhf_shear.data.columns import label_at, value_at

COUNT, CONTENTS = "number of prompts", "digest of the prompts, their labels and their order"


def blended(sets: list[list], probabilities: str | None, seed: int) -> list:
    """Concatenate the sets or, with probabilities, interleave them by `datasets`, which gets numbers for rows."""
    if probabilities is None:
        return list(itertools.chain.from_iterable(sets))
    from datasets import Dataset as Numbers
    from datasets import interleave_datasets

    numbered = [
        Numbers.from_dict({"set": [number] * len(rows), "row": range(len(rows))}) for number, rows in enumerate(sets)
    ]
    shares = [float(share) for share in probabilities.split(",")]
    order = interleave_datasets(numbered, probabilities=shares, seed=seed, stopping_strategy="all_exhausted")
    return [sets[place["set"]][place["row"]] for place in order]


def of_rows(rows: Iterable[dict], input_key: str, label_key: str | None) -> dict[str, object]:
    """Return the number of rows, and a digest of their prompts and labels in order; images are not included."""
    digest, count = hashlib.sha256(), 0
    for row in rows:
        asked = [value_at(row, input_key), None if label_key is None else label_at(row, label_key)]
        digest.update(json.dumps(asked, default=str).encode() + b"\n")
        count += 1
    return {COUNT: count, CONTENTS: digest.hexdigest()[:16]}
