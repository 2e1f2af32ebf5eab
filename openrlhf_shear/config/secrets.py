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
_PATTERNS = (
    (re.compile(r"(\w:/*)[^\s/?#'\"]*@"), rf"\1{_HIDDEN}@"),
    (re.compile(r"(\w://[^\s?#'\"]*)[?#][^\s'\"]+"), rf"\1?{_HIDDEN}"),
    # A header may be folded into lines, and a quoted one shows these as escapes.
    (re.compile(r"\b(Bearer|Basic)((?:\s|\\[rnt])+)[\w.~+/-]{16,}=*", re.IGNORECASE), rf"\1\2{_HIDDEN}"),
)


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
        for pattern, by in _PATTERNS:
            value = pattern.sub(by, value)
        return value
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
