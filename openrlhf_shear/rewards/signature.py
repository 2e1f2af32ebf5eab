"""The reward function of a module: OpenRLHF's `reward_func(queries, prompts, labels)`, or one of TRL's form.

TRL's form is `NAME(completions, ...)`, called with lists of one: `completions` has the response without the special
tokens at its end, `prompts` the prompt as the policy reads it. Each other parameter without a default gets the label,
or its field of that name if the label is an object; `**kwargs` gets all fields. It returns a list with a number.
"""

import inspect
from collections.abc import Callable
from types import ModuleType

from openrlhf_shear.rewards.responses import answer_of

NEEDED = "reward_func(queries, prompts, labels)"
# Parameters that only a framework's reward functions have, by framework.
_FOREIGN = {"verl": {"data_source", "solution_str", "solution_strs"}}


def reward_function(module: ModuleType) -> Callable | None:
    """Return what to call as `reward_func(queries, prompts, labels)`; None if there is no such function."""
    function = getattr(module, "reward_func", None)
    if function is None:
        of_trl = [name for name, signature in _functions(module).items() if _is_trl(signature)]
        function = getattr(module, of_trl[0]) if len(of_trl) == 1 else None
    if not callable(function) or inspect.iscoroutinefunction(function):
        return None
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return function
    return _as_openrlhf(function, signature) if _is_trl(signature) else function


def _is_trl(signature: inspect.Signature) -> bool:
    return "completions" in signature.parameters


def _as_openrlhf(function: Callable, signature: inspect.Signature) -> Callable:
    """Return a function of TRL's form as one of OpenRLHF's, of lists of one."""
    kinds = signature.parameters.values()
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in kinds)
    named = [
        each for each in kinds if each.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    ]

    def called(queries: list[str], prompts: list[str], labels: list) -> dict:
        fields = labels[0] if isinstance(labels[0], dict) else {}
        given = {"prompts": prompts, "completions": [answer_of(queries[0], prompts[0])]}
        given |= {name: [value] for name, value in fields.items() if takes_all or name in signature.parameters}
        missing = [each.name for each in named if each.name not in given and each.default is inspect.Parameter.empty]
        given |= {name: labels for name in missing}
        if not (takes_all or "prompts" in signature.parameters):
            del given["prompts"]
        output = function(**given)
        return output if isinstance(output, dict) else {"rewards": output}

    return called


def problem_of(module: ModuleType) -> str | None:
    """Return what is wrong with a reward file's function, and what to do; None if it can be called."""
    function = getattr(module, "reward_func", None)
    if function is None and reward_function(module) is not None:
        return None
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
    if _is_trl(signature):
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
