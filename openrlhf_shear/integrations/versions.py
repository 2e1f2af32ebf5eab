"""Whether an installed package is one that an integration fits: of the known version, or with all that is relied on.

`trl.json` and `verl.json` hold, as `fork/contract.json` does for the fork, every function that is overridden or relied
on, with its signature and a digest of its source; `tests/unit/upstream_uses.py` writes them.
"""

import warnings
from importlib import metadata
from pathlib import Path

from openrlhf_shear.fork import contract


def terms_of(package: str) -> dict[str, contract.Term]:
    return contract.read(contract_of(package))


def contract_of(package: str) -> Path:
    return Path(__file__).with_name(f"{package}.json")


def require(package: str, known: str) -> None:
    """Another version is taken with a warning if all that is relied on is the same there.

    Raises:
        ModuleNotFoundError: it is not installed.
        RuntimeError: another version, in which something is not what it was; the message has a line for each.
    """
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        problem = f"needs the extra [{package}]: {package} is not installed; use: pip install '.[{package}]'"
        raise ModuleNotFoundError(f"{problem} (docs/{package}.md)", name=package) from None
    if version == known:
        return
    changed = contract.changes(terms_of(package))
    if changed:
        listed = "".join(f"\n  {line}" for line in changed)
        raise RuntimeError(
            f"openrlhf_shear.integrations.{package} is made for {package} {known}: got {version}, in which something "
            f"that it relies on is another; use: pip install {package}=={known}. Changed there:{listed}"
        )
    warnings.warn(
        f"openrlhf_shear.integrations.{package} is made for {package} {known}, not {version}; what it relies on is "
        f"the same there",
        stacklevel=3,
    )
