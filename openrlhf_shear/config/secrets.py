"""Secrets, to be kept out of logs, trackers and reports: tokens in URLs, keys, and values of environment variables.

And texts of others in a line: of servers, programs and exceptions (`quoted`).
"""

import os
import re
from argparse import Namespace
from types import SimpleNamespace

REWARD_TOKEN = "OPENRLHF_SHEAR_REWARD_TOKEN"
WANDB_KEY = "WANDB_API_KEY"
VARIABLES = (REWARD_TOKEN, WANDB_KEY, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "RAY_AUTH_TOKEN")
_HIDDEN = "***"
_LEAST = 8  # characters of a secret in the environment; a shorter value could be part of any text
_QUOTED = re.compile(r"\b(Bearer|Basic)((?:\s|\\[rnt])+)[\w.~+/-]{16,}=*", re.IGNORECASE)  # \\: an escaped line break
# Each pattern takes all characters that can belong to a match, so that no text makes the search quadratic.
_WORD = re.compile(r"((?<=\w:)/+)?([^\s/?#'\"]+)")
_SCHEME = re.compile(r"\w:")
_QUERY = re.compile(r"(\w://[^\s?#'\"]*)([?#][^\s'\"]+)?")


def _without_user(found: re.Match[str]) -> str:
    """Hide the part of a word before its last @, from the colon, or from the slashes before the word."""
    before, at, after = found[2].rpartition("@")
    if found[1] and at:
        return f"{found[1]}{_HIDDEN}@{after}"
    scheme = _SCHEME.search(before)
    return f"{before[: scheme.end()]}{_HIDDEN}@{after}" if scheme else found[0]


def _without_query(found: re.Match[str]) -> str:
    return f"{found[1]}?{_HIDDEN}" if found[2] else found[0]


def hidden(value, *known: str):
    """Return a text, or a list, tuple, dict or namespace of texts, without secrets.

    Secrets are users, tokens and queries of URLs, authorization headers, the `known` texts, and the values of the
    environment's `VARIABLES`.

    >>> hidden({"url": "http://shear:secret@host:5000/get_reward?key=secret"})
    {'url': 'http://***@host:5000/get_reward?***'}
    """
    if isinstance(value, Secret):
        return value.shown
    if isinstance(value, str):
        values = [secret for name in VARIABLES if len(secret := os.environ.get(name, "")) >= _LEAST]
        for secret in filter(None, (*known, *values)):
            value = value.replace(secret, _HIDDEN)
        value = _QUERY.sub(_without_query, _WORD.sub(_without_user, value))
        return _QUOTED.sub(rf"\1\2{_HIDDEN}", value)
    if isinstance(value, dict):
        return {name: hidden(item, *known) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(hidden(item, *known) for item in value)
    if isinstance(value, Namespace | SimpleNamespace):
        return type(value)(**hidden(vars(value), *known))
    return value


def quoted(text: str) -> str:
    r"""Return a foreign text as one line, in which no character moves the cursor, colours or turns what follows.

    >>> quoted("half\n[openrlhf_shear] the run ended\x1b[31m")
    'half\\n[openrlhf_shear] the run ended\\x1b[31m'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Secret(str):
    """Text whose `repr` is another text, so that `print(args)` or a tracker's configuration does not show it.

    >>> SimpleNamespace(key=Secret("abc")), Secret("http://a:b@c,http://d", "-").split(",")
    (namespace(key='***'), ['http://***@c', 'http://d'])
    """

    shown: str

    def __new__(cls, text: str, shown: str = _HIDDEN):
        secret = super().__new__(cls, text)
        secret.shown = shown
        return secret

    def __repr__(self) -> str:
        return repr(self.shown)

    def split(self, *how) -> list[str]:
        return [Secret(part, hidden(part)) for part in super().split(*how)]
