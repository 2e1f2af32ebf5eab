"""What nobody may read in a log, a tracker or a report: tokens in URLs, keys, and those that the environment holds."""

import os
import re
from argparse import Namespace
from types import SimpleNamespace

REWARD_TOKEN = "OPENRLHF_SHEAR_REWARD_TOKEN"
WANDB_KEY = "WANDB_API_KEY"
VARIABLES = (REWARD_TOKEN, WANDB_KEY, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "RAY_AUTH_TOKEN")
_HIDDEN = "***"
_LEAST = 8  # characters of a secret in the environment; a shorter one is a word of many texts
_QUOTED = re.compile(r"\b(Bearer|Basic)((?:\s|\\[rnt])+)[\w.~+/-]{16,}=*", re.IGNORECASE)  # \\: folded, in quotes
# Each takes all that may belong to it at once: no text makes the search quadratic.
_WORD = re.compile(r"((?<=\w:)/+)?([^\s/?#'\"]+)")
_SCHEME = re.compile(r"\w:")
_QUERY = re.compile(r"(\w://[^\s?#'\"]*)([?#][^\s'\"]+)?")


def _without_user(found: re.Match[str]) -> str:
    """Of a word what stands before its last @ and after the colon, or the slashes before the word."""
    before, at, after = found[2].rpartition("@")
    if found[1] and at:
        return f"{found[1]}{_HIDDEN}@{after}"
    scheme = _SCHEME.search(before)
    return f"{before[: scheme.end()]}{_HIDDEN}@{after}" if scheme else found[0]


def _without_query(found: re.Match[str]) -> str:
    return f"{found[1]}?{_HIDDEN}" if found[2] else found[0]


def hidden(value, *known: str):
    """A text, or what is made of texts (lists, dicts, namespaces), without secrets: users, tokens and queries of URLs,
    authorization headers, the `known` ones and those of the environment's `VARIABLES`.

    >>> hidden({"url": "http://shear:secret@host:5000/get_reward?key=secret"})
    {'url': 'http://***@host:5000/get_reward?***'}
    """
    if isinstance(value, Secret):
        return value.shown
    if isinstance(value, str):
        held = [secret for name in VARIABLES if len(secret := os.environ.get(name, "")) >= _LEAST]
        for secret in filter(None, (*known, *held)):
            value = value.replace(secret, _HIDDEN)
        value = _QUERY.sub(_without_query, _WORD.sub(_without_user, value))
        return _QUOTED.sub(rf"\1\2{_HIDDEN}", value)
    if isinstance(value, dict):
        return {name: hidden(one, *known) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(hidden(one, *known) for one in value)
    if isinstance(value, Namespace | SimpleNamespace):
        return type(value)(**hidden(vars(value), *known))
    return value


class Secret(str):
    """A text that is shown as another wherever an object is printed: `print(args)`, a tracker's configuration.

    >>> SimpleNamespace(key=Secret("abc")), Secret("http://a:b@c,http://d", "-").split(",")
    (namespace(key='***'), ['http://***@c', 'http://d'])
    """

    def __new__(cls, text: str, shown: str = _HIDDEN):
        made = super().__new__(cls, text)
        made.shown = shown
        return made

    def __repr__(self) -> str:
        return repr(self.shown)

    def split(self, *how) -> list[str]:
        return [Secret(part, hidden(part)) for part in super().split(*how)]
