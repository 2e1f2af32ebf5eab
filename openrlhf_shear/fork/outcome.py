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
    """The run cannot work as configured; found before training."""

    code = REFUSED


class RewardsLostError(RunEndedError):
    """Too many rewards failed for too many steps, or the run trained on no rollout."""

    code = REWARDS


class NotFiniteError(RunEndedError):
    """A NaN or infinite value makes further training pointless."""

    code = NOT_FINITE


class EngineGapError(RunEndedError):
    """The engines sample from a policy other than the trained one."""

    code = ENGINE_GAP


class GradientLostError(RunEndedError):
    """An optimizer step lacks the gradient of a micro-batch; every update would, so the run ends at once."""

    code = REFUSED


class StoppedError(RunEndedError):
    """A signal asked the run to stop."""

    code = STOPPED
