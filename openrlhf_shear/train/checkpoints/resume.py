"""Comparison of a run with the checkpoint that it resumes from."""

from argparse import Namespace

from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.line.accepted import accepted_topics
from openrlhf_shear.train.checkpoints import fingerprint
from openrlhf_shear.train.screen.outcome import RefusedError
from openrlhf_shear.train.screen.story import say

logger = init_logger(__name__)
FRESH = {"episode": 0, "consumed": 0, "global_step": 0, "total_consumed_prompts": 0}
"""States of a run that has not begun; a checkpoint has the same names, and more."""
_KEPT = ("ledger", "waiting", "waiting_episode", "kl")


def states_of(kept: dict, mine: fingerprint.Fingerprint, args: Namespace, size: int) -> dict:
    """Return the states from which a run resumes; the driver could compare only what it sees.

    With other prompts, or another order, the episode restarts at its first prompt.

    Args:
        kept: the states of the checkpoint.
        mine: the fingerprint of this run, with its data.
        size: the number of prompts.

    Raises:
        RefusedError: the checkpoint belongs to another run, and `--ckpt.accept_changes` does not allow that.
    """
    if "consumed" not in kept:  # an older version, with another order of prompts
        kept["consumed"] = kept["total_consumed_prompts"] - kept["episode"] * max(size, 1)
        logger.warning("the checkpoint is of an older version: this episode has another order of prompts")
    if fingerprint.STATE in kept:
        _compare(kept, mine, args, size)
    else:
        say(fingerprint.unknown(f"the checkpoint of step {kept['global_step']}"))
    states = {name: kept[name] for name in (*FRESH, *_KEPT) if name in kept}
    return states | {fingerprint.STATE: mine.topics}


def _compare(kept: dict, mine: fingerprint.Fingerprint, args: Namespace, size: int) -> None:
    accepted, place = accepted_topics(args.ckpt.accept_changes), f"{args.ckpt.path}: step {kept['global_step']}"
    saved = kept[fingerprint.STATE]
    try:
        lines = fingerprint.judged(mine, saved, accepted, place, args.ds.use_universal_ckpt)
    except ValueError as error:
        raise RefusedError(str(error)) from None
    for line in lines:
        say(line)
    changes = mine.changes(saved)
    cut = kept.get("waiting") and any(change.what == "rollout.n_samples_per_prompt" for change in changes)
    if cut:
        say(f"{len(kept['waiting'])} waiting rollouts are dropped: they are groups of another size")
        kept["waiting"] = []
        kept["episode"] = kept.get("waiting_episode", kept["episode"])  # batches made ahead may be of an earlier one
    if cut or (kept["consumed"] and {change.topic for change in changes} & {"data", "seed"}):
        why = "some of its rollouts were dropped" if cut else "its prompts, or their order, are others"
        say(f"episode {kept['episode'] + 1} begins again: {why}")
        kept["total_consumed_prompts"] = kept["episode"] * size
        kept["consumed"] = 0
