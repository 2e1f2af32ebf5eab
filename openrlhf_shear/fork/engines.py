"""The rollout engines of a run: asked together, and started again when they die."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import ray
from openrlhf.utils.logging_utils import init_logger
from vllm.v1.engine.exceptions import EngineDeadError

logger = init_logger(__name__)
START_SECONDS = 900.0  # for an engine to be there again, its model loaded
_TRIES = 3  # times in a row that the same thing may be tried with new engines


class EnginesLostError(RuntimeError):
    """Engines died and could not be brought back."""


def is_dead(error: BaseException) -> bool:
    """Whether a call failed because the engine's actor, or vLLM's core below it, is gone."""
    cause = getattr(error, "cause", None) or error
    gone = (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError, EngineDeadError, EnginesLostError)
    return isinstance(cause, gone)


class Engines:
    """vLLM's, in Ray actors that Ray starts again under the same handle (`launch.install_hooks`)."""

    def __init__(self, handles: Sequence[ray.actor.ActorHandle], sync: Callable[[], None] | None):
        """`sync` sends the policy's weights to all of them, as a new engine has those of the base model; None where
        the policy may be in an update, so that it cannot be asked for them: then who dies is not started again.
        """
        self.handles, self._sync = list(handles), sync

    def persist(self, what: str, attempt: Callable[[], object]) -> object:
        """The result of `attempt`, which asks engines, with those that die on the way started again.

        Raises:
            EnginesLostError: they die again and again, or do not come back.
        """
        for left in reversed(range(_TRIES)):
            try:
                return attempt()
            except ray.exceptions.RayError as error:
                if not is_dead(error):
                    raise
                if not left:
                    lost = f"{what}: engines died {_TRIES} times in a row: {last_line(error)}"
                    raise EnginesLostError(lost) from error
                logger.warning(f"{what}: an engine died: {last_line(error)}")
                self.revive()
        raise AssertionError("unreachable")

    def call(self, method: str, *args, **kwargs) -> list:
        """As upstream's `batch_vllm_engine_call`; who has been started again meanwhile is asked too."""

        def attempt() -> list:
            return ray.get([getattr(handle, method).remote(*args, **kwargs) for handle in self.handles])

        return self.persist(method, attempt)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While every generation under way stands still; it goes on behind the tokens that it has."""
        self.call("pause_generation")
        try:
            yield
        finally:
            self.call("resume_generation")

    def require_revival(self) -> None:
        """Raises EnginesLostError: who has died will not be started again."""
        if self._sync is None:
            raise EnginesLostError(
                "an engine died in asynchronous training, which starts none again; the run goes on from its last "
                "checkpoint: --ckpt.load_enable, or --train.max_restarts for it to do so by itself"
            )

    def revive(self) -> None:
        """Start what is dead again, and give everybody the policy's weights.

        Raises:
            EnginesLostError: an engine did not come back within `START_SECONDS`, or may not.
        """
        self.require_revival()
        for number, handle in enumerate(self.handles):
            if not _answers(handle):
                logger.warning(f"engine {number} is started again")
                ray.kill(handle, no_restart=False)  # its core is gone, if it is not itself
                _wait_for(handle, number)
        self._sync()


def _answers(handle: ray.actor.ActorHandle) -> bool:
    try:
        return ray.get(handle.is_well.remote(), timeout=60.0)
    except ray.exceptions.RayError:
        return False


def _wait_for(handle: ray.actor.ActorHandle, number: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            if ray.get(handle.is_well.remote(), timeout=deadline - time.monotonic()):
                return
        except ray.exceptions.ActorUnavailableError:
            pass  # still starting
        except ray.exceptions.RayError as error:
            if getattr(error, "preempted", False) or "creation" in str(error):
                raise EnginesLostError(f"engine {number} does not start again: {last_line(error)}") from error
        time.sleep(1.0)
    raise EnginesLostError(f"engine {number} did not come back within {START_SECONDS:g} s")


def last_line(error: BaseException) -> str:
    """Of what may be a long remote traceback; pydantic puts an address behind what it says."""
    lines = [line for line in str(error).splitlines() if line.strip() and "For further information visit" not in line]
    return f"{type(error).__name__}: {lines[-1].strip()}" if lines else type(error).__name__
