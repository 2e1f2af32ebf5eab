"""Check that an installed package suits an integration: it has the known version, or all functions in use are the same.

`trl.json` and `verl.json` hold every function that an integration overrides or relies on, with its signature and a
digest of its source, like `fork/contract.json` for the fork. `tests/unit/upstream_uses.py` writes them.
"""

import warnings
from importlib import metadata
from pathlib import Path

from openrlhf_shear.train import contract


def terms_of(package: str) -> dict[str, contract.Term]:
    return contract.read(contract_of(package))


def contract_of(package: str) -> Path:
    return Path(__file__).with_name(f"{package}.json")


def require(package: str, known: str) -> None:
    """Accept the known version of a package; accept another with a warning if all functions in use are the same there.

    Raises:
        ModuleNotFoundError: the package is not installed.
        RuntimeError: functions in use differ in the installed version; the message lists them.
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
            f"openrlhf_shear.integrations.{package} is made for {package} {known}: got {version}, which changed "
            f"functions that it relies on; use: pip install {package}=={known}. Changed there:{listed}"
        )
    warnings.warn(
        f"openrlhf_shear.integrations.{package} is made for {package} {known}, not {version}; what it relies on is "
        f"the same there",
        stacklevel=3,
    )
