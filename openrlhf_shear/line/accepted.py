"""--ckpt.accept_changes: what a resumed run may change."""

from openrlhf_shear.config.refusal import refuse

FLAG = "ckpt.accept_changes"
TAKEN = {  # topics that may change, with the effect of a change
    "data": "the current episode starts again from its first prompt: no prompt is left out, some are trained on twice",
    "seed": "the same as for data, in the order of the new seed",
    "rule": "later steps use the new credit rule",
    "batch": "later steps have the new sizes, and the learning rate's schedule has another length",
    "model": "training goes on with the checkpoint's weights, and the new model's reference, tokenizer and settings",
}


def accepted_topics(topics: str | None) -> list[str]:
    """Return the topics that the flag's value names. Raises LineError: a topic is unknown."""
    names = [topic.strip() for topic in topics.split(",")] if topics else []
    for topic in names:
        if topic not in TAKEN:
            refuse(FLAG, "must name what may differ", topic, f"some of {','.join(TAKEN)}")
    return names
