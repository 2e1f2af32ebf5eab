"""Right responses with one changed number: errors whose place is known, to see whether a model is strong enough."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import regex as re

from openrlhf_shear.lab.offline.responses import NO_ERROR, Response, ResponseGroup

_RESULT = re.compile(r"=[\s$\\]*([0-9]+)")  # a whole number, or the beginning of a number, behind an equals sign


@dataclass(frozen=True)
class Planted:
    """A right response of a group, and the same response with a changed number."""

    group: ResponseGroup
    at: int  # index of the right response in the group
    changed: Response


def changed(response: Response, rng: random.Random) -> Response | None:
    """Return the response with another number in one step, called wrong; None if no step can be changed.

    The step is drawn from those that have a number behind an equals sign, except the first step, which has nothing
    before it. One such number of the step gets other digits, as many as before.
    """
    places = [i for i, step in enumerate(response.steps) if i and _RESULT.search(step)]
    if not places:
        return None
    at = rng.choice(places)
    step = response.steps[at]
    start, end = rng.choice([match.span(1) for match in _RESULT.finditer(step)])
    steps = list(response.steps)
    steps[at] = step[:start] + _other(step[start:end], rng) + step[end:]
    return replace(response, steps=tuple(steps), correct=False, label=at)


def planted(groups: Sequence[ResponseGroup], seed: int, limit: int) -> list[Planted]:
    """Return a pair for each right response without a wrong step whose problem has another right response.

    Only the responses of the first `limit` problems with a pair are used.
    """
    pairs: list[Planted] = []
    problems: set[int] = set()
    for group in groups:
        if len(problems) == limit:
            break
        right = [i for i, response in enumerate(group.responses) if response.correct]
        for i in (i for i in right if group.responses[i].label == NO_ERROR and len(right) > 1):
            response = group.responses[i]
            wrong = changed(response, random.Random(f"{seed}:{response.problem}:{response.text}"))
            if wrong is not None:
                pairs.append(Planted(group, i, wrong))
                problems.add(group.problem)
    return pairs


def _other(digits: str, rng: random.Random) -> str:
    """Return another number of as many digits, without a leading zero unless it has one digit."""
    low, high = (0, 9) if len(digits) == 1 else (10 ** (len(digits) - 1), 10 ** len(digits) - 1)
    drawn = digits
    while drawn == digits:
        drawn = str(rng.randint(low, high))
    return drawn
