"""The reward function of a module: OpenRLHF's `reward_func(queries, prompts, labels)`, or one of TRL's form.

TRL's form is `NAME(completions, ...)`, called with lists of one: `completions` has the response without the special
tokens at its end, `prompts` the prompt as the policy reads it. Each other parameter without a default gets the label's
field of that name, if the label is an object; `**kwargs` gets all fields. A single such parameter, of a name that no
field has, gets the whole label. The function returns a list with a number.
"""

import inspect
from collections.abc import Callable
from types import ModuleType

from openrlhf_shear.rewards.responses import answer_of

NEEDED = "reward_func(queries, prompts, labels)"
_OF_VERL = {"data_source", "solution_str", "solution_strs"}  # parameters that only verl's reward functions have
_OF_TRL = {"completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}  # that only TRL's trainer has


def reward_function(module: ModuleType) -> Callable:
    """Return what to call as `reward_func(queries, prompts, labels)`.

    Raises ValueError: the file has no such function; the message says what it has, and what to do.
    """
    signatures = _functions(module)
    of_trl = [name for name, signature in signatures.items() if "completions" in signature.parameters]
    function = getattr(module, "reward_func", getattr(module, of_trl[0]) if len(of_trl) == 1 else None)
    if function is None:
        own = ", ".join(f"{name}{sign}" for name, sign in signatures.items()) or "no function at all"
        raise ValueError(f"defines no {NEEDED}, but {own}{_hint(signatures, of_trl)}")
    if not callable(function):
        raise ValueError(f"has a reward_func that is no function but {type(function).__name__}; {NEEDED} is needed")
    name = "reward_func" if hasattr(module, "reward_func") else function.__name__
    if inspect.iscoroutinefunction(function):
        raise ValueError(f"has a {name} that is async; use def {NEEDED}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature: the call will tell
        return function
    if "completions" in signature.parameters:
        if lacking := ", ".join(column for column in _columns(signature) if column in _OF_TRL):
            problem = f"has a {name} that needs {lacking}, which only TRL's trainer has; use completions, or **kwargs"
            raise ValueError(problem)
        return _as_openrlhf(function, signature)
    try:
        signature.bind([""], [""], [""])
    except TypeError as error:
        problem = f"has reward_func{signature}, which cannot be called as {NEEDED}: {error}{_hint(signatures, [])}"
        raise ValueError(problem) from error
    return function


def _as_openrlhf(function: Callable, signature: inspect.Signature) -> Callable:
    """Return a function of TRL's form as one of OpenRLHF's, of lists of one."""
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in signature.parameters.values())
    columns = _columns(signature)

    def called(queries: list[str], prompts: list[str], labels: list) -> dict:
        fields = labels[0] if isinstance(labels[0], dict) else {}
        keywords = {name: [value] for name, value in fields.items() if takes_all or name in signature.parameters}
        keywords |= {"prompts": prompts, "completions": [answer_of(queries[0], prompts[0])]}
        missing = [name for name in columns if name not in keywords]
        if missing and len(columns) > 1:
            needs = f"it needs {', '.join(columns)}, and the label has no {', '.join(missing)}"
            raise TypeError(f"{needs}; use --data.label_key {','.join(columns)}")
        keywords |= {name: labels for name in missing}
        if not (takes_all or "prompts" in signature.parameters):
            del keywords["prompts"]
        output = function(**keywords)
        return output if isinstance(output, dict) else {"rewards": output}

    return called


def _columns(signature: inspect.Signature) -> list[str]:
    """Return the parameters of a function of TRL's form that only the label can give."""
    fixed = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    needed = [each for each in signature.parameters.values() if each.kind not in fixed]
    return [each.name for each in needed if each.default is each.empty and each.name not in ("prompts", "completions")]


def _functions(module: ModuleType) -> dict[str, inspect.Signature]:
    """Return the signatures of the functions that the file itself defines."""
    own = {name: value for name, value in vars(module).items() if inspect.isfunction(value)}
    return {name: inspect.signature(value) for name, value in own.items() if value.__module__ == module.__name__}


def _hint(signatures: dict[str, inspect.Signature], of_trl: list[str]) -> str:
    if len(of_trl) > 1:
        remedy = "name one of them reward_func, or add them up in a reward_func(completions, **kwargs)"
        return f"; {' and '.join(of_trl)} have TRL's form, and a file has a single reward: {remedy}"
    if any(name in _OF_VERL for signature in signatures.values() for name in signature.parameters):
        return f"; this is verl's interface, OpenRLHF's is {NEEDED}, which returns a dict with rewards"
    return "; OpenRLHF calls it with three lists of one item each, and it returns a dict with rewards"
