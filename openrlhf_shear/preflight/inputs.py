"""Checks of the code and the benchmarks that a command line names: do they exist, and do they fit the flags?"""

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from openrlhf_shear.config.refusal import Finding, Refusal, caught, refusal, refuse
from openrlhf_shear.data.files import DataError
from openrlhf_shear.line.run import Run
from openrlhf_shear.preflight.rewards import graders, jailed


def code(run: Run) -> Iterator[Finding]:
    agent = run.train.agent_func_path
    if agent:
        if not agent.endswith(".py") or not os.path.isfile(agent):
            yield refusal("train.agent_func_path", "must be a Python file", agent, "the path of an existing .py file")
        else:
            yield from caught(_agent, agent)
    elif run.reward.remote_url:
        yield from graders(run, run.reward.remote_url)


def _agent(file: str) -> None:
    """Refuse a file that is no Python, or that names no AgentExecutor; it is not run, which takes an engine."""
    flag, name = "train.agent_func_path", "AgentExecutor"
    try:
        source = Path(file).read_bytes()
        compile(source, file, "exec", dont_inherit=True)  # finds more than ast.parse, e.g. a return outside a function
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte
        refuse(flag, f"is no Python file ({error})", file, f"python {file} to see the error")
    if not {name, "*"} & set(_module_names(ast.parse(source))):
        refuse(flag, f"has no {name}", file, f"class {name}(MultiTurnAgentExecutor), as in examples/agents")


def _module_names(part: ast.AST) -> Iterator[str]:
    """Yield the names that a module may define: also under `if` and `try`, but not in functions and classes."""
    for inner in ast.iter_child_nodes(part):
        if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield inner.name
        elif isinstance(inner, ast.alias):
            yield inner.asname or inner.name
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id
        elif not isinstance(inner, ast.Lambda):
            yield from _module_names(inner)


def suite(run: Run) -> Iterator[Finding]:
    """Load the first question of each benchmark, and check that its grader can run."""
    if not run.eval.suite:
        return
    from openrlhf_shear.evaluation.suite import suite_benchmarks
    from openrlhf_shear.sampling.benchmarks import load_questions

    folder = Path(run.eval.data_dir) if run.eval.data_dir else None
    flags = ("eval.suite", "reward.remote_url", "data.input_key", "data.label_key")
    try:
        for benchmark in suite_benchmarks(*(run.flags[flag] for flag in flags)):
            load_questions(benchmark, folder, limit=1)
    except (DataError, ValueError) as error:
        yield Refusal("eval.suite", str(error))
    yield from jailed(run, "eval.suite")
