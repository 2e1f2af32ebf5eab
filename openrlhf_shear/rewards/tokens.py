"""The token of a reward server, from a file or from the environment, for client and server alike."""

import os
import re
from pathlib import Path

from openrlhf_shear.config.secrets import REWARD_TOKEN

_TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,512}")


def check_token(token: str) -> str:
    """Return the token without the white space around it.

    Raises:
        ValueError: it is shorter than 16 characters, longer than 512, or would have to be escaped in a URL. The message
            does not repeat it.
    """
    token = token.strip()
    if not _TOKEN.fullmatch(token):
        raise ValueError(
            f"the token must be 16 to 512 letters, digits or -._~ (it stands in a URL): got {len(token)} characters; "
            'use e.g. the output of python -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    return token


def read_token(file: str | Path | None) -> str | None:
    """Return the token in the file, else in the environment; None if neither is given.

    Raises:
        ValueError: the token is not usable (`check_token`), or the file cannot be read.
    """
    if not file:
        return check_token(os.environ[REWARD_TOKEN]) if REWARD_TOKEN in os.environ else None
    try:
        return check_token(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the token file cannot be read: {error}") from error
