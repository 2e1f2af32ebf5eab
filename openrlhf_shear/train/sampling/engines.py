"""Rollout engines of a run: calls go to all of them, prompts to the least busy; dead engines are restarted."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import ray
from openrlhf.utils.logging_utils import init_logger
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_shear.config.secrets import quoted
from openrlhf_shear.train.carriers import Prompt

logger = init_logger(__name__)
START_SECONDS = 900.0  # for a restarted engine to load its model
_TRIES = 3  # attempts at the same call, with restarted engines
_POLL_SECONDS = 1.0
_MOST_REVIVALS = 5  # rounds per step in which engines may die


class EnginesLostError(RuntimeError):
    """Error of engines that died and could not be restarted."""


def is_dead(error: BaseException) -> bool:
    """Return whether a call failed because the engine's actor, or its vLLM core, is dead."""
    cause = getattr(error, "cause", None) or error
    gone = (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError, EngineDeadError, EnginesLostError)
    return isinstance(cause, gone)


class Engines:
    """vLLM engines in Ray actors, which Ray restarts under the same handle (`launch.install_hooks`)."""

    def __init__(self, handles: Sequence[ray.actor.ActorHandle], sync: Callable[[], None] | None):
        """
        Args:
            sync: sends the policy's weights to all engines, because a restarted engine has the base model's. None if
                the policy may be in an update and cannot send them; dead engines are then not restarted.
        """
        self.handles, self._sync = list(handles), sync

    def persist(self, what: str, attempt: Callable[[], object]) -> object:
        """Call `attempt`, which calls engines, and return its result; if an engine dies, restart it and try again.

        Raises:
            EnginesLostError: engines die in every attempt, or do not restart.
        """
        for tries in itertools.count(1):
            try:
                return attempt()
            except ray.exceptions.RayError as error:
                if not is_dead(error):
                    raise
                if tries == _TRIES:
                    lost = f"{what}: engines died {_TRIES} times in a row: {last_line(error)}"
                    raise EnginesLostError(lost) from error
                logger.warning(f"{what}: an engine died: {last_line(error)}")
                self.revive()

    def call(self, method: str, *args, **kwargs) -> list:
        """Call a method of every engine, as upstream's `batch_vllm_engine_call`; repeat it after a restart."""
        calls = [getattr(handle, method) for handle in self.handles]
        return self.persist(method, lambda: ray.get([call.remote(*args, **kwargs) for call in calls]))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause every generation in flight; afterwards each continues from the tokens that it has."""
        self.call("pause_generation")
        try:
            yield
        finally:
            self.call("resume_generation")

    def require_revival(self) -> None:
        """Check that dead engines may be restarted.

        Raises:
            EnginesLostError: they may not (asynchronous training).
        """
        if self._sync is None:
            raise EnginesLostError(
                "an engine died in asynchronous training, which cannot restart it; resume from the last checkpoint: "
                "--ckpt.load_enable, or --train.max_restarts to do so automatically"
            )

    def revive(self) -> None:
        """Restart dead engines, and send all engines the policy's weights.

        Raises:
            EnginesLostError: an engine did not restart within `START_SECONDS`, or may not be restarted.
        """
        self.require_revival()
        for number, handle in enumerate(self.handles):
            try:
                is_well = ray.get(handle.is_well.remote(), timeout=60.0)
            except ray.exceptions.RayError:
                is_well = False
            if not is_well:
                logger.warning(f"engine {number} is started again")
                ray.kill(handle, no_restart=False)  # the actor may live on after its core
                _wait_for(handle, number)
        self._sync()


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
    """Return the last line of an error, which may be a long remote traceback, without pydantic's link at the end."""
    lines = [line for line in str(error).splitlines() if line.strip() and "For further information visit" not in line]
    return f"{type(error).__name__}: {quoted(lines[-1].strip())}" if lines else type(error).__name__


class Dispatch:
    """Prompts that wait for engines or are with them; true while there are any."""

    def __init__(self, engines: Engines, request: tuple, held: int):
        """
        Args:
            request: the arguments of the engines' `generate_responses` after the prompt.
            held: responses of a prompt, if idle engines wait until all requests of a batch are there; else 0.
        """
        self._engines, self._request, self._held = engines, request, held
        self._waiting: list[Prompt] = []
        self._pending: dict[ray.ObjectRef, tuple[Prompt, ray.actor.ActorHandle]] = {}
        self._revivals, self._has_lost = 0, False

    def __bool__(self) -> bool:
        return bool(self._waiting or self._pending)

    def add(self, prompts: Sequence[Prompt]) -> None:
        self._waiting += prompts

    def results(self) -> Iterator[tuple[Prompt, int, list[dict]]]:
        """Send waiting prompts; yield a prompt with its engine's number and responses, if one is there in a second.

        Raises:
            EnginesLostError: engines die again and again, or may not be restarted.
        """
        if self._has_lost and not self._pending:  # the live engines have finished: weights can be sent
            self._revivals += 1
            if self._revivals > _MOST_REVIVALS:
                raise EnginesLostError(f"engines died in {self._revivals} rounds of the same step; see their logs")
            self._engines.revive()
            self._has_lost = False
        if self._waiting and not self._has_lost:
            self._send()
        ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=_POLL_SECONDS)
        for ref in ready:
            prompt, engine = self._pending.pop(ref)
            try:
                responses = ray.get(ref)
            except ray.exceptions.RayError as error:
                if not is_dead(error):
                    raise
                self._engines.require_revival()
                logger.warning(f"an engine died, a prompt of it is sent again: {last_line(error)}")
                self._waiting.append(prompt)
                self._has_lost = True
            else:
                yield prompt, self._engines.handles.index(engine), responses

    def _send(self) -> None:
        busy = [engine for _, engine in self._pending.values()]
        load, engines = {engine: busy.count(engine) for engine in self._engines.handles}, []
        for _ in self._waiting:
            engine = min(load, key=load.get)
            load[engine] += 1
            engines.append(engine)
        if self._held and not busy:
            counts = [(engine, self._held * prompts) for engine, prompts in Counter(engines).items()]
            self._engines.persist("hold", lambda: ray.get([engine.hold.remote(count) for engine, count in counts]))
        for prompt, engine in zip(self._waiting, engines, strict=True):
            self._pending[engine.generate_responses.remote(prompt, *self._request)] = (prompt, engine)
        self._waiting = []
