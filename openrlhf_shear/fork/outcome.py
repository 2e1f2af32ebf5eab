"""How a run ends when it does not end well, and the exit code that says so.

0   finished, or there was nothing left to do      1   anything else: worth another attempt
2   refused at start                               3   rewards failed, step after step
4   values that are not finite                     75  asked to stop, and saved: start it again to go on
"""

ERROR, REFUSED, REWARDS, NOT_FINITE, STOPPED = 1, 2, 3, 4, 75


class RunEndedError(RuntimeError):
    """Ends a run on purpose; its message is all that there is to say, without a traceback."""

    code = ERROR


class RefusedError(RunEndedError):
    """It cannot work like this, seen before anything was loaded."""

    code = REFUSED


class RewardsLostError(RunEndedError):
    """Too many rewards failed, for too many steps."""

    code = REWARDS


class NotFiniteError(RunEndedError):
    """Something is NaN or infinite that training cannot go on with."""

    code = NOT_FINITE


class GradientLostError(RunEndedError):
    """An optimizer step lacks the gradient of a micro-batch; as an update repeats it, this ends the run at once."""

    code = REFUSED


class StoppedError(RunEndedError):
    """A signal asked for it."""

    code = STOPPED
