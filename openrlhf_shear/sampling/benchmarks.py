"""The benchmarks. To add one, add a `Benchmark` to `_ALL`; `custom` makes one from a file of yours."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

from openrlhf_shear.config.refusal import did_you_mean
from openrlhf_shear.data.columns import label_at, label_columns, no_label, value_at
from openrlhf_shear.data.sources import Dropped, boxed, hashed, label, prompt_text, tests
from openrlhf_shear.rewards.graders import GRADERS
from openrlhf_shear.rewards.maths.grader import STEP_BY_STEP
from openrlhf_shear.sampling import livecodebench, prompts
from openrlhf_shear.sampling.questions import Benchmark, Row, load_questions, source

__all__ = ["BENCHMARKS", "SUITES", "Benchmark", "custom", "load_questions", "parse_names", "source"]


def _answer(row: Row) -> tuple[str, str]:
    r"""Label by the answer column, else by the last box of the solution (the hub's AIME24 has no other answer)."""
    return label(row["answer"]) if row.get("answer") is not None else boxed(row.get("solution"))


def _olympiad(row: Row) -> tuple[str, str]:
    """Label by one gold. A problem with several answers needs them all, so they are one text, "2, 3", not a list."""
    golds = row["final_answer"]
    if not isinstance(golds, list) or not all(isinstance(gold, str) for gold in golds):
        raise Dropped("no_answer", f"final_answer must be a list of texts: got {golds!r}")
    return label(", ".join(golds) if row["is_multiple_answer"] else golds[:1])


def _error(row: Row) -> float | None:
    """Return OlympiadBench's absolute tolerance, given as "1e-1" or null."""
    error = float(row["error"]) if row["error"] else None
    if error is not None and not 0 <= error < math.inf:
        raise ValueError(f"error must be a distance of at least 0: got {row['error']!r}")
    return error


def _tests(*names: str) -> Callable[[Row], tuple[str, str]]:
    return lambda row: tests({name: row.get(name) for name in names})


_humaneval, _mbpp = _tests("test", "entry_point", "prompt"), _tests("test_list", "test_imports")


def _humaneval_plus(row: Row) -> tuple[str, str]:
    if "inputs = " not in str(row["test"]):  # EvalPlus's other file has only the base tests under this name
        raise Dropped("bad_tests", "the test has no list of inputs: use HumanEvalPlus-OriginFmt or the hub's layout")
    return _humaneval(row)


def _mbpp_plus(row: Row) -> tuple[str, str]:
    if not row["test"]:
        raise Dropped("bad_tests", "the test is empty")
    return _tests("test_list", "test_imports", "test")(row)


_MBPP = "mbppplus/MbppPlus-OriginFmt.jsonl.gz"
_maths = partial(Benchmark, task="math", k=1, prompt=prompts.maths, label=_answer, system=STEP_BY_STEP)
_code = partial(Benchmark, task="code", k=4)
_humanevals = partial(_code, columns=("task_id", "prompt", "entry_point", "test"), prompt=prompts.humaneval, size=164)
_mbpps = partial(_code, hub="evalplus/mbppplus", files=(_MBPP,), prompt=prompts.mbpp, size=378)
_EVALPLUS = "EvalPlus's prompt without the beginning of an answer that EvalPlus gives the model."
_PROBLEM, _ANSWER = "problem|question", "answer|solution"

_ALL = (
    _maths("aime24", "AIME24", "math-ai/aime24", ("aime24/test.jsonl",), (_PROBLEM, _ANSWER), k=32, size=30),
    _maths("aime25", "AIME25", "math-ai/aime25", ("aime25/test.jsonl",), (_PROBLEM, "answer"), k=32, size=30),
    _maths("amc23", "AMC23", "math-ai/amc23", ("amc23/test.jsonl",), (_PROBLEM, "answer"), k=8, size=40),
    _maths("math500", "MATH500", "HuggingFaceH4/MATH-500", ("math500/test.jsonl",), ("problem", "answer"), size=500),
    _maths(
        *("olympiadbench", "OlympiadBench", "Hothan/OlympiadBench", ("olympiadbench/test.jsonl",)),
        columns=("question", "final_answer", "is_multiple_answer", "error"),
        configs=("OE_TO_maths_en_COMP",),
        split="train",
        size=675,
        label=_olympiad,
        tolerance=_error,
    ),
    _maths(
        *("gsm8k", "GSM8K", "openai/gsm8k", ("gsm8k/test.jsonl",), ("question", "answer")),
        configs=("main",),
        size=1319,
        label=lambda row: hashed(row["answer"]),
    ),
    _humanevals(
        *("humaneval", "HumanEval", "openai/openai_humaneval", ("humaneval/HumanEval.jsonl.gz",)),
        label=_humaneval,
        notes=_EVALPLUS,
    ),
    _humanevals(
        *("humaneval+", "HumanEval+", "evalplus/humanevalplus", ("humanevalplus/HumanEvalPlus-OriginFmt.jsonl.gz",)),
        label=_humaneval_plus,
        notes=f"Base and plus tests. {_EVALPLUS}",
    ),
    _mbpps(
        *("mbpp", "MBPP"),
        columns=("task_id", "prompt", "test_list"),
        label=_mbpp,
        notes=f"The 378 tasks of EvalPlus with their base tests. {_EVALPLUS}",
    ),
    _mbpps(
        *("mbpp+", "MBPP+"),
        columns=("task_id", "prompt", "test_list", "test"),
        label=_mbpp_plus,
        notes=f"378 tasks, base and plus tests, without five inputs of task 255 that fill memory. {_EVALPLUS}",
    ),
    _code(
        *("livecodebench", "LiveCodeBench v6", "livecodebench/code_generation_lite", ("livecodebench/test6.jsonl",)),
        hub_file="test6.jsonl",
        columns=(
            *("question_id", "question_content", "starter_code", "contest_date"),
            *("public_test_cases", "private_test_cases", "metadata"),
        ),
        prompt=prompts.livecodebench,
        label=livecodebench.label,
        keep=livecodebench.in_window,
        system=prompts.LIVECODEBENCH_SYSTEM,
        notes=f"The problems of {livecodebench.SINCE} <= contest_date < {livecodebench.BEFORE}.",
    ),
)

BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _ALL}

SUITES: dict[str, tuple[str, ...]] = {
    "math": ("aime24", "aime25", "amc23", "math500", "olympiadbench"),
    "code": ("humaneval", "humaneval+", "mbpp", "mbpp+", "livecodebench"),
}


def parse_names(text: str) -> list[Benchmark]:
    """Return the benchmarks of "aime24,math500", each once; a suite's name, "math" or "code", stands for its five.

    Raises ValueError for an unknown name, or without any name.
    """
    names: dict[str, None] = {}
    known = [*BENCHMARKS, *SUITES]
    use = f"use one or more of {', '.join(known)}"
    for name in filter(None, (part.strip().lower() for part in text.split(","))):
        if name not in known:
            raise ValueError(f"no benchmark is called {name!r}{did_you_mean(name, known)}; {use}")
        names |= dict.fromkeys(SUITES.get(name, (name,)))
    if not names:
        raise ValueError(f"no benchmark is named: got {text!r}; {use}")
    return [BENCHMARKS[name] for name in names]


def custom(path: str | Path, task: str, prompt_key: str, label_key: str, k: int) -> Benchmark:
    """Return a benchmark from a file of yours, called "custom-" and the name of the file.

    Args:
        path: a file of any kind that `data.files.open_rows` reads.
        task: a built-in grader, or a .py file with `reward_func`. A grader's system turn goes before a text; messages
            are asked unchanged.
        prompt_key: column of a text, or of chat messages: a user turn, perhaps after system turns.
        label_key: column of a gold answer or a list of equal ones, or of tests (see `rewards.code.tests_of`). For
            `reward_func` it is a column of any JSON value, passed on unchanged, as in training; or several columns,
            separated by commas (`data.columns.label_at`).

    Raises:
        ValueError: the task is none of these, or k is below 1.
    """
    grader = GRADERS.get(task)
    if grader is None and not task.endswith(".py"):
        raise ValueError(f"the task must be {', '.join(GRADERS)} or a .py file with reward_func: got {task!r}")
    if k < 1:
        raise ValueError(f"k must be at least 1 completion a question: got {k}; use e.g. 4")
    file = Path(path).name
    return Benchmark(
        *(f"custom-{file.partition('.')[0]}", file, None, (str(path),)),
        columns=(_column(prompt_key), *_label_columns(label_key)),
        task=task,
        k=k,
        prompt=lambda row: _turns(value_at(row, prompt_key)),
        label=lambda row: (label if grader else _unchanged)(label_at(row, label_key)),
        system=grader and grader.system,
    )


def _column(key: str) -> str:
    """Return the columns of which a row needs one, as `Benchmark.columns` names them: a.b may be a field of a."""
    return f"{key}|{key.partition('.')[0]}" if "." in key else key


def _label_columns(key: str) -> list[str]:
    """Return the columns of a label, which has several if its key has a comma and is no column itself."""
    return [f"{key}|{_column(column)}" if "," in key else _column(column) for column in label_columns(key).values()]


def _unchanged(value: object) -> tuple[object, str]:
    if problem := no_label(value):
        raise Dropped("no_answer", f"the label {problem}")
    return value, "own"


def _turns(value: object) -> str | list[dict[str, str]]:
    prompt_text(value)
    if not isinstance(value, list):
        return value  # with its outer white space, as in training
    return [{"role": turn["role"], "content": str(turn.get("content") or "")} for turn in value]
