"""The user turn of each benchmark, word for word as its protocol has it: scores compare only with equal prompts.

HumanEval and MBPP use EvalPlus's chat prompt (evalplus/codegen.py, provider/utility.py), without its beginning of the
model's answer. LiveCodeBench uses its own prompt for chat models (lcb_runner/prompts/code_generation.py, release v6).
"""

import re
from collections.abc import Mapping
from typing import Any

from openrlhf_shear.data.sources import prompt_text
from openrlhf_shear.rewards.code import tests_of

EVALPLUS = """\
Please provide a self-contained Python script that solves the following problem in a markdown code block:
```
{prompt}
```
"""

LIVECODEBENCH_SYSTEM = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will generate a "
    "correct Python program that matches the specification and passes all tests."
)
LIVECODEBENCH_FUNCTION = """\
### Question:
{question}

### Format: You will use the following starter code to write the solution to the problem and enclose your code within \
delimiters.
```python
{starter}
```

### Answer: (use the provided format with backticks)

"""
LIVECODEBENCH_STDIN = """\
### Question:
{question}

### Format: Read the inputs from stdin solve the problem and write the answer to stdout (do not directly test on the \
sample inputs). Enclose your code within delimiters as follows. Ensure that when the python program runs, it reads the \
inputs, runs the algorithm and writes output to STDOUT.
```python
# YOUR CODE HERE
```

### Answer: (use the provided format with backticks)

"""

_LINK = re.compile(r"https?://\S+")


def maths(row: Mapping[str, Any]) -> str:
    return prompt_text(row["question"] if row.get("problem") is None else row["problem"])


def humaneval(row: Mapping[str, Any]) -> str:
    return EVALPLUS.format(prompt=prompt_text(row["prompt"]))


def mbpp(row: Mapping[str, Any]) -> str:
    """Prompt as EvalPlus does, by a docstring: the task, without the links of some tasks, and its first base test."""
    task = _LINK.sub("", prompt_text(row["prompt"]))
    first = tests_of({"test_list": row["test_list"]}).tests[0]
    return EVALPLUS.format(prompt=f'"""\n{task}\n{first}\n"""')


def livecodebench(row: Mapping[str, Any]) -> str:
    """Return the prompt with its outer white space: LiveCodeBench strips nothing."""
    prompt_text(row["question_content"])
    if row["starter_code"]:
        return LIVECODEBENCH_FUNCTION.format(question=row["question_content"], starter=row["starter_code"])
    return LIVECODEBENCH_STDIN.format(question=row["question_content"])
