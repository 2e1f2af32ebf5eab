"""Grades an attack of `hostile.yaml`, and then an honest program in the same jail; for `hostile_neighbours.py`."""

import json
import secrets
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from openrlhf_shear.rewards import Verdict, grade_code
from openrlhf_shear.rewards.code.hosts import CodeWorkers

_HONEST_SECONDS = 60.0  # of an honest test: it is late only if the attack has spoilt its jail
_MEMORY_MB = 256  # of a program: less takes less time to fill

PROGRAMS = yaml.safe_load(Path(__file__).with_name("hostile.yaml").read_text(encoding="utf-8"))
BEGIN, SEARCH = PROGRAMS["begin"], PROGRAMS["begin"] + PROGRAMS["search"]
LABELS = PROGRAMS["labels"]
READ = "read results"


@dataclass(frozen=True)
class Attack:
    """A hostile program and the right end of its grade, as `hostile.yaml` says."""

    goal: str
    program: str
    ends: str = "wrong_answer"
    label: str = "echo"
    looks: str = "False"
    seconds: float = 10.0
    past: bool = False

    @classmethod
    def of(cls, goal: str, program: str, **options: object) -> "Attack":
        """Return an attack of the file: after the beginning, with more time if it searches."""
        begin, known = (SEARCH, {"seconds": 30.0}) if goal == READ else (BEGIN, {})
        return cls(goal, begin + program, **(known | options))


ATTACKS = {name: Attack.of(goal, **row) for goal, rows in PROGRAMS["attacks"].items() for name, row in rows.items()}


def attacked(names: Iterable[str]) -> Iterator[dict]:
    """Yield a row for each attack, all in a single warm jail of each kind, in turn.

    `held`: the verdict of the attack is right, and so is that of the honest answer after it. `jail`: the jail that
    grades the honest answer is the "same", or "new" because the attack wrote files or broke it.
    """
    with CodeWorkers(1) as workers:
        for name in names:
            attack = ATTACKS[name]
            if not _jails(workers):
                _graded(workers, *_honest("False", LABELS["echo"]))
            label, secret = _labelled(attack)
            if attack.past:
                _grade_secret(workers, secret)
            before = _jails(workers)
            verdict = _graded(workers, attack.program, label, attack.seconds)
            jail = "same" if before == _jails(workers) else "new"
            after = _graded(workers, *_honest(attack.looks, LABELS[attack.label]))
            ended = verdict.correct is False and verdict.why in attack.ends.split()
            yield {
                "attack": name,
                "goal": attack.goal,
                "verdict": verdict.why or "passed",
                "next": after.why or "passed",
                "jail": jail,
                "held": ended and after.correct is True,
                "details": [verdict.detail, after.detail],
            }


def speed(count: int) -> dict[str, float]:
    """Return programs a second, without attacks: of a warm jail (median of five rounds), and of a jail for each grade.

    Args:
        count: grades of a round; a fifth as many for fresh jails.
    """

    def rate(workers: CodeWorkers, grades: int) -> float:
        began = time.monotonic()
        for _ in range(grades):
            if not _graded(workers, "print(2 * int(input()))", LABELS["echo"]).correct:
                raise SystemExit("an honest program was graded as wrong")
        return grades / (time.monotonic() - began)

    with CodeWorkers(1) as warm, CodeWorkers(1, most=1) as fresh:
        rate(warm, 1)
        return {
            "warm": statistics.median(rate(warm, count) for _ in range(5)),
            "fresh": rate(fresh, max(1, count // 5)),
        }


def _labelled(attack: Attack) -> tuple[dict, str]:
    secret = "5bc5bc" + secrets.token_hex(16)
    return json.loads(json.dumps(LABELS[attack.label]).replace("{SECRET}", secret)), secret


def _grade_secret(workers: CodeWorkers, secret: str) -> None:
    """Grade an honest program of each kind whose program, input and expected output hold the secret."""
    _graded(workers, f"print({secret!r})", {"inputs": [secret], "outputs": [secret]})
    call = f"def f(x): return {secret!r}"
    _graded(workers, call, {"fn_name": "f", "inputs": [[secret]], "outputs": [secret]})
    _graded(workers, call, {"test_list": [f"assert f(3) == {secret!r}"]})


def _honest(looks: str, label: dict) -> tuple[str, dict]:
    """Return an honest program and its tests, of a label's kind. It is wrong only if `looks` finds something."""
    looking = f"{BEGIN}\nleft = {looks}\n"
    if "inputs" in label and "fn_name" not in label:
        return f"{looking}print('left' if left else 2 * int(input()))", LABELS["echo"]
    return f"{looking}def f(x): return 'left' if left else 2 * x", LABELS["call" if "fn_name" in label else "asserts"]


def _graded(workers: CodeWorkers, program: str, label: dict, seconds: float = _HONEST_SECONDS) -> Verdict:
    return grade_code(program, label, extract=False, timeout=seconds, memory_mb=_MEMORY_MB, workers=workers)


def _jails(workers: CodeWorkers) -> list[int]:
    """Return the processes of the jails of responses that are ready."""
    return [host.process.pid for host in workers.hosts("responses", False).workers if host.poll() is None]
