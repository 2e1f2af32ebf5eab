"""Bytes that a run writes to its disks: checkpoints, and the trained model."""

_WEIGHT = 2  # bytes of a parameter in bfloat16
_LEARNED = 14  # per learned parameter of a checkpoint: 2 in bfloat16, 4 in float32, 8 for Adam's two moments


def model_bytes(parameters: int) -> int:
    """Return the bytes of a saved model."""
    return _WEIGHT * parameters


def checkpoint_bytes(parameters: int, frozen: int = 0, averaged: bool = False) -> int:
    """Return the bytes of a checkpoint.

    Args:
        parameters: of the model.
        frozen: of them, those that do not learn.
        averaged: whether a moving average of the weights is saved too.

    >>> checkpoint_bytes(1000), checkpoint_bytes(1000, frozen=900), checkpoint_bytes(1000, averaged=True)
    (14000, 3200, 16000)
    """
    return _LEARNED * (parameters - frozen) + _WEIGHT * frozen + _WEIGHT * parameters * averaged
