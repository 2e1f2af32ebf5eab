"""Check whether the model hub can be reached, once per process, as the hub's client would retry for half a minute."""

import threading
from functools import lru_cache
from pathlib import Path

from openrlhf_shear.data.files import one_line

SECONDS = 5.0


@lru_cache(maxsize=1)
def unreachable() -> str:
    """Return why the hub cannot be reached, within about 5 s; "" if it answers, whatever the answer."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    problem = [f"{constants.ENDPOINT} does not answer within {SECONDS:g} s"]

    def ask() -> None:
        try:
            get_session().head(constants.ENDPOINT, timeout=SECONDS)
            problem[0] = ""
        except Exception as error:  # of the network, of a proxy, of certificates
            problem[0] = f"{constants.ENDPOINT}: {one_line(error)}"

    asking = threading.Thread(target=ask, daemon=True)  # the look-up of a name has no timeout
    asking.start()
    asking.join(SECONDS + 1)
    return problem[0]


def has_cached(name: str) -> bool:
    """Return whether `datasets` or the hub's client has a data set in its cache."""
    import datasets
    from huggingface_hub import constants

    prepared = Path(datasets.config.HF_DATASETS_CACHE, name.replace("/", "___"))
    return prepared.is_dir() or Path(constants.HF_HUB_CACHE, f"datasets--{name.replace('/', '--')}").is_dir()
