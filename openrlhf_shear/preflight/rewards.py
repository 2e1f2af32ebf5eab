"""What gives rewards: whether it is there and can be run, and the numbers that say how."""

import ast
import math
import os
from collections.abc import Iterator
from urllib.parse import urlsplit

from openrlhf_shear.config.secrets import REWARD_TOKEN
from openrlhf_shear.data.files import tilde
from openrlhf_shear.preflight.refusal import Values, refuse
from openrlhf_shear.rewards import settings
from openrlhf_shear.rewards.jail import JailError, find_jail
from openrlhf_shear.rewards.tokens import read_token

_FLAG = "reward.remote_url"
_NEEDED = "a file with reward_func(queries, prompts, labels)"
_BOUNDS = {  # least, most, and what to use instead
    "reward.timeout": (0, None, "seconds, or 0 for the default of each kind of reward"),
    "reward.retries": (0, None, f"e.g. {settings.RETRIES}, or 0 for one try only"),
    "reward.cores": (0, None, "0 for half of a node's cores"),
    "reward.memory_mb": (64, None, f"e.g. {settings.MEMORY_MB}"),
    "reward.max_failed": (0, 1, f"e.g. {settings.MAX_FAILED}, or 1 for never"),
    "reward.max_failed_steps": (1, None, f"e.g. {settings.MAX_FAILED_STEPS}"),
}


def bounds(values: Values) -> None:
    for flag, (least, most, remedy) in _BOUNDS.items():
        if not least <= values[flag] <= (math.inf if most is None else most) or math.isinf(values[flag]):
            within = f"at least {least}" if most is None else f"from {least} to {most}"
            refuse(flag, f"must be {within}", values[flag], remedy)


def graders(values: Values, url: str) -> None:
    if all(part.startswith(("http://", "https://")) for part in url.split(",")):
        _servers(url)
        _token(values)
    elif url in settings.BUILT_IN:
        if values["train.async_enable"]:
            refuse(_FLAG, "does not go with --train.async_enable", url, "a server: cli.serve_reward")
        if not values["data.label_key"]:
            refuse("data.label_key", f"is needed: --reward.remote_url {url} grades against it", None, "a column")
        jailed(values, f"reward.remote_url {url}")
    elif not url.endswith(".py"):
        refuse(_FLAG, "is no reward", url, "math, code, the path of a .py file, or http:// addresses")
    elif not os.path.isfile(url):
        refuse(_FLAG, "names a file that is not there", url, f"the path of a .py file{tilde(url)}")
    elif not _binds(url, "reward_func"):
        refuse(_FLAG, "names a file without reward_func at its top level", url, _NEEDED)


def jailed(values: Values, what: str) -> None:
    try:
        find_jail(values["reward.allow_unsandboxed"])
    except JailError as error:
        raise ValueError(f"{what}: {error}") from error


def _servers(urls: str) -> None:
    for number, url in enumerate(urls.split(","), 1):
        try:
            parts = urlsplit(url)
            there = parts.hostname and (parts.port is None or parts.port > 0)
        except ValueError:  # a port that is none, a bracket that is not closed
            there = False
        if not there:
            refuse(_FLAG, f"has no address as its server {number}", url, "e.g. http://host:5000/get_reward")


def _token(values: Values) -> None:
    file = values["reward.token_file"]
    if file and values["train.async_enable"]:
        refuse("reward.token_file", "does not go with --train.async_enable", file, "http://shear:TOKEN@host:5000/...")
    try:
        read_token(file)
    except ValueError as error:
        raise ValueError(f"{f'reward.token_file {file}' if file else REWARD_TOKEN}: {error}") from error


def _binds(path: str, name: str) -> bool:
    """Whether a Python file binds `name` at its top level, or may (a star import); it is not run.

    Raises:
        ValueError: it does not parse; says where.
    """
    with open(path, "rb") as file:
        source = file.read()
    try:
        tree = ast.parse(source, path)
        compile(tree, path, "exec", dont_inherit=True)  # a return outside a function parses
    except SyntaxError as error:
        place = f"{path}:{error.lineno}" if error.lineno else path
        refuse(_FLAG, f"names a file that is not Python ({place}: {error.msg})", path, _NEEDED)
    except (ValueError, RecursionError, MemoryError) as error:  # zero bytes; brackets without end
        refuse(_FLAG, f"names a file that is not Python ({path}: {error})", path, _NEEDED)
    for node in _top_level(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            return True
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name) in (name, "*"):
            return True
    return False


def _top_level(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below, in no body of a function or class."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _top_level(child)
