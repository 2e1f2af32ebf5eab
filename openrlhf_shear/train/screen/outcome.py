"""Exit codes of a run, and the errors that end it on purpose.

- 0: finished, or nothing was left to do
- 1: anything else; worth another attempt
- 2: refused at the start
- 3: the rewards left nothing to train on
- 4: values that are not finite
- 5: the engines sample from a policy other than the trained one
- 75: stopped by a signal, and saved; resume it
"""

ERROR, REFUSED, REWARDS, NOT_FINITE, ENGINE_GAP, STOPPED = 1, 2, 3, 4, 5, 75


class RunEndedError(RuntimeError):
    """Error that ends a run on purpose; its message is shown without a traceback."""

    code = ERROR


class RefusedError(RunEndedError):
    """Refusal of a run that cannot work as configured, raised before training."""

    code = REFUSED


class RewardsLostError(RunEndedError):
    """End of a run because too many rewards failed for too many steps, or because it trained on no rollout."""

    code = REWARDS


class NotFiniteError(RunEndedError):
    """End of a run because of a NaN or infinite value that stops training."""

    code = NOT_FINITE


class EngineGapError(RunEndedError):
    """End of a run because the engines sample from a policy other than the trained one."""

    code = ENGINE_GAP


class GradientLostError(RunEndedError):
    """End of a run because an optimizer step lacks the gradient of a micro-batch; every update would repeat this."""

    code = REFUSED


class ModelNotWrittenError(RunEndedError):
    """End of a run whose trained model the disk refuses; another attempt may write it from the last checkpoint."""


class StoppedError(RunEndedError):
    """End of a run because a signal asked it to stop."""

    code = STOPPED
