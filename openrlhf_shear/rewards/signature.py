"""Check of a module for the `reward_func(queries, prompts, labels)` that OpenRLHF calls."""

import inspect
from types import ModuleType

NEEDED = "reward_func(queries, prompts, labels)"
# Parameters that only a framework's reward functions have, by framework.
_FOREIGN = {"TRL": {"completions"}, "verl": {"data_source", "solution_str", "solution_strs"}}


def problem_of(module: ModuleType) -> str | None:
    """Return what is wrong with a reward file's function, and what to do; None if it can be called."""
    function = getattr(module, "reward_func", None)
    if function is None:
        own = ", ".join(f"{name}{sign}" for name, sign in _functions(module).items()) or "no function at all"
        return f"defines no {NEEDED}, but {own}{_hint(module)}"
    if not callable(function):
        return f"has a reward_func that is no function but {type(function).__name__}; {NEEDED} is needed"
    if inspect.iscoroutinefunction(function):
        return f"has a reward_func that is async; use def {NEEDED}"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature: the call will tell
        return None
    try:
        signature.bind([""], [""], [""])
    except TypeError as error:
        return f"has reward_func{signature}, which cannot be called as {NEEDED}: {error}{_hint(module)}"
    return None


def _functions(module: ModuleType) -> dict[str, inspect.Signature]:
    """Return the signatures of the functions that the file itself defines."""
    own = {name: value for name, value in vars(module).items() if inspect.isfunction(value)}
    return {name: inspect.signature(value) for name, value in own.items() if value.__module__ == module.__name__}


def _hint(module: ModuleType) -> str:
    names = {name for signature in _functions(module).values() for name in signature.parameters}
    for framework, known in _FOREIGN.items():
        if names & known:
            return f"; this is {framework}'s interface, OpenRLHF's is {NEEDED}, which returns a dict with rewards"
    return "; OpenRLHF calls it with three lists of one item each, and it returns a dict with rewards"
