"""Synthetic rollouts of the built-in arithmetic task: true texts and errors, weights and distances drawn smoothly.

Distances of all span pairs are made first; nearest spans, weights and heatmaps follow from them as they do in SHEAR.
"""

import random
from dataclasses import replace

import numpy as np

from openrlhf_shear.config.shear import SpanCut
from openrlhf_shear.rollouts.record import Heatmap, Rollout
from openrlhf_shear.tasks.arithmetic.problems import MODULUS, make_problems
from openrlhf_shear.tasks.arithmetic.solutions import check, write_solution
from openrlhf_shear.transport import span_starts

WINDOW, STRIDE = 16, 4
SETTINGS = {"rule": "shear", "window": WINDOW, "stride": STRIDE, "step": 40, "model": "arithmetic policy (synthetic)"}


def arithmetic_text(problem, rng, wrong):
    """A right response, or a response with a wrong result that its later steps use."""
    steps = write_solution(problem, rng).split(";")
    if wrong:
        # Every operation is one-to-one, so another start changes every value.
        other = replace(problem, start=(problem.start + rng.randint(1, MODULUS - 1)) % MODULUS)
        others, at = write_solution(other, rng).split(";"), rng.randrange(2, len(steps) - 1)
        steps = [*steps[:at], steps[at].split("=")[0] + "=" + others[at].split("=")[1], *others[at + 1 :]]
    return ";".join(steps)


def smooth(rng, rows, columns):
    """(rows, columns) distances with a little structure, in units of nbar."""
    steps = rng.normal(size=(2, max(rows, 1), max(columns, 1)))
    field = np.cumsum(steps[0], axis=0) + np.cumsum(steps[1], axis=1)
    field = (field - field.min()) / max(np.ptp(field), 1e-9)
    return (0.2 + 0.45 * field + 0.01 * rng.random(field.shape)).astype(np.float32)[:rows, :columns]


def group(name, tokens, correct, seed=0, window=WINDOW, stride=STRIDE, prompt="1+1=", label="2", errors=None):
    """Return a group's rollouts with all evidence of SHEAR; heatmaps show at most 32 spans of a rollout.

    Args:
        tokens: of each rollout, its texts.
        correct: of each rollout, True, False or None.
        errors: of each rollout, its first error.
    """
    rng = np.random.default_rng(seed)
    count = len(tokens)
    starts = [span_starts(len(texts), SpanCut(window, stride)).tolist() for texts in tokens]
    pairs = {(i, j): smooth(rng, len(starts[i]), len(starts[j])) for i in range(count) for j in range(i + 1, count)}
    kept = [np.unique(np.linspace(0, len(s) - 1, min(len(s), 32)).round().astype(int)).tolist() for s in starts]
    share = float(np.mean([outcome is True for outcome in correct]))
    spread = (share * (1 - share)) ** 0.5 or 1.0

    def between(i, j):
        return pairs[i, j] if i < j else pairs[j, i].T

    def made(i):
        texts, failed = list(tokens[i]), correct[i] is None
        opposing = [j for j in range(count) if not failed and correct[j] is (not correct[i])]
        spans = _nearest(between, i, opposing, starts) if opposing else {}
        heat = {j: between(i, j)[np.ix_(kept[i], kept[j])].ravel().tolist() for j in range(i + 1, count)}
        return Rollout(
            **{"group": name, "sample": i, "prompt": prompt, "label": label, "truncated": False},
            correct=correct[i],
            reward=None if failed else float(correct[i]),
            advantage=None if failed else (correct[i] - share) / spread,
            tokens=texts,
            token_ids=[ord(text[0]) if text else 0 for text in texts],
            weights=_pool(spans["span_distances"], starts[i], window, len(texts)) if spans else None,
            span_starts=starts[i],
            **spans,
            heatmap_spans=kept[i],
            heatmaps=[Heatmap(j, values) for j, values in heat.items()],
            answer_start=texts.index("#") if "#" in texts else None,
            first_error=errors[i] if errors else None,
        )

    return [made(i) for i in range(count)]


def _nearest(between, i, opposing, starts):
    distances = np.concatenate([between(i, j) for j in opposing], axis=1)
    which = [(j, k) for j in opposing for k in range(len(starts[j]))]
    nearest = distances.argmin(1)
    return {
        "span_distances": distances.min(1).tolist(),
        "nearest_sample": [which[n][0] for n in nearest],
        "nearest_span": [which[n][1] for n in nearest],
    }


def _pool(distances, starts, window, length):
    return [max(d for d, s in zip(distances, starts, strict=True) if s <= t < s + window) for t in range(length)]


def arithmetic_groups(problems=4, rollouts=8, seed=0):
    """Groups of the built-in task; every fourth is not mixed."""
    rng, made = random.Random(seed), []
    for p, problem in enumerate(make_problems(problems, seed)):
        wrong = [p % 4 != 3 and r % 8 >= 3 + p % 3 for r in range(rollouts)]
        texts = [arithmetic_text(problem, rng, is_wrong) for is_wrong in wrong]
        checks = [check(problem, text) for text in texts]
        made += group(
            f"problem-{p:03d}",
            [[*text] for text in texts],
            [checked.correct for checked in checks],
            seed=seed + p,
            prompt=problem.prompt,
            label=problem.answer,
            errors=[checked.first_error for checked in checks],
        )
    return made


def long_groups(groups, rollouts, length, seed=0, window=100, stride=25):
    """Groups of words, for sizes and times: lengths around `length` tokens."""
    rng = random.Random(seed)
    words = [" the", " so", " we", " x", " =", " +", " 12", " value", ".", "\n", " therefore", " a", "\\frac", "{", "}"]
    made = []
    for g in range(groups):
        tokens = [rng.choices(words, k=round(length * rng.uniform(0.9, 1.1))) for _ in range(rollouts)]
        correct = [rng.random() < 0.5 for _ in range(rollouts)]
        correct[:2] = True, False
        made += group(f"group-{g}", tokens, correct, seed + g, window, stride, prompt="A long problem. " * 20)
    return made


ATTACKS = ("<script>window.hit=1</script>", "</script><script>window.hit=2</script>", "--><!--",
           "<img src=x onerror=window.hit=3>", "\u2028\u2029'\"`${window.hit=4}", "\u202etxt\u202c", "ab\u0301\u0301",
           "\n", "\n\n", "\t", "", " ", "<b>", "\x1b[0m", "&lt;", "javascript:window.hit=5")  # fmt: skip


def odd_groups():
    """By group: three mixed and one unmixed of arithmetic; hostile text; a rule without weights; odd ends."""
    attacks = "".join(ATTACKS[:5])
    hostile = group(attacks, [ATTACKS * 3, ATTACKS * 2], [True, False], seed=7, prompt=attacks, label=attacks)
    plain = group("own-advantages", [["one", "two", "three"] * 9] * 2, [True, False], seed=8)
    signs = [r.correct * 2 - 1 for r in plain]
    nothing = dict.fromkeys(("weights", "span_starts", "span_distances", "nearest_sample", "nearest_span"))
    nothing |= dict.fromkeys(("heatmap_spans", "heatmaps"))
    plain = [
        replace(r, token_advantages=[sign * (0.5 + i / 10) for i in range(len(r.tokens))], **nothing)
        for r, sign in zip(plain, signs, strict=True)
    ]
    odd = group("odd", [["x"] * 20, ["y"] * 30, [], ["z"] * 9], [True, False, False, None], seed=9)
    odd[0] = replace(odd[0], first_error=20)  # it stops early: where its end-of-text token would be
    odd[1] = replace(odd[1], truncated=True)
    return [*arithmetic_groups(4), *hostile, *plain, *odd]
