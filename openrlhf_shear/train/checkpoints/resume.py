"""Comparison of a run with the checkpoint that it resumes from: its states and the bytes of its files."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.train.checkpoints import fingerprint, folders
from openrlhf_shear.train.screen.outcome import RefusedError
from openrlhf_shear.train.screen.story import say

logger = init_logger(__name__)
FRESH = {"episode": 0, "consumed": 0, "global_step": 0, "total_consumed_prompts": 0}
"""States of a run that has not begun; a checkpoint has the same names, and more."""
_OTHERS = ("ledger", "learned", "waiting", "kl")


def states_of(saved: dict, mine: fingerprint.Fingerprint, args: Namespace, size: int) -> dict:
    """Return the states from which a run resumes; the driver could compare only what it sees.

    With other prompts, or another order, the episode restarts at its first prompt.

    Args:
        mine: the fingerprint of this run, with its data.
        size: the number of prompts.

    Raises:
        RefusedError: the checkpoint belongs to another run, and `--ckpt.accept_changes` does not allow that.
    """
    accepted, topics = fingerprint.accepted_topics(args.ckpt.accept_changes), saved[fingerprint.STATE]
    place = f"{args.ckpt.path}: step {saved['global_step']}"
    try:
        lines = fingerprint.judged(mine, topics, accepted, place, args.ds.use_universal_ckpt)
    except ValueError as error:
        raise RefusedError(str(error)) from None
    for line in lines:
        say(line)
    changes = mine.changes(topics)
    if saved["consumed"] and {change.topic for change in changes} & {"data", "seed"}:
        say(f"episode {saved['episode'] + 1} begins again: its prompts, or their order, are others")
        saved |= {"total_consumed_prompts": saved["episode"] * size, "consumed": 0}
    states = {name: saved[name] for name in (*FRESH, *_OTHERS) if name in saved}
    return states | {fingerprint.STATE: mine.topics}


def newest_whole(saved: Sequence[Path], rank: int, ranks: int, gathered: Callable[[object], list]) -> str | None:
    """Return the newest checkpoint whose files pass their digests, in every folder of `saved`; log those that fail.

    Every rank calls this, and reads a share of the files.

    Args:
        gathered: returns the values of all ranks.

    Raises:
        RefusedError: there are checkpoints, and none can be loaded.
    """
    failed: list[str] = []
    logged: set[str] = set()
    while True:
        tag, flaws = folders.find(saved, failed) if rank == 0 else (None, [])
        problem = "" if tag or rank else folders.no_fresh_start(saved[0])
        of_first = (tag, folders.shares([folder / tag for folder in saved] if tag else [], ranks), problem)
        tag, shares, problem = gathered(of_first)[0]
        changed = [] if tag is None else [line for lines in gathered(folders.changed(shares[rank])) for line in lines]
        if rank == 0:
            for line in dict.fromkeys([*flaws, *changed]):
                if line not in logged:
                    logger.warning(f"checkpoint passed over: {line}")
            logged.update(flaws, changed)
        if not changed:
            break
        failed.append(tag)
    if problem:
        raise RefusedError(problem)
    if rank == 0:
        fresh = f"no complete checkpoint in {saved[0]}: a fresh start"
        logger.info(f"resuming from {saved[0] / tag}" if tag else fresh)
    return tag
