"""Messages of a run for people: its current activity, a line per step, and how it ended; `console` shows them."""

import re
import sys
import time
from argparse import Namespace
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Protocol

MARK = "[openrlhf_shear]"  # prefix of lines for the screen; other lines go to the log alone
NOW = "[openrlhf_shear:now]"  # prefix of the current activity: WORDS, or WORDS DONE/TOTAL
_EVERY_SECONDS = 1.0
_RECENT = 20  # steps whose mean duration gives the ETA


class Stream(Protocol):
    """Destination of lines, such as stdout."""

    def write(self, text: str) -> object: ...

    def flush(self) -> None: ...


_diverted: Stream | None = None


def divert(stream: Stream | None) -> None:
    """Send this process's messages to `stream` from now on (`relay`); None for stdout."""
    global _diverted
    _diverted = stream


def put(text: str) -> None:
    """Print whole lines; if the disk is full or the reader is gone, drop them and go on."""
    stream = _diverted or sys.stdout
    with suppress(OSError):
        stream.write(text)
        stream.flush()


def say(text: str) -> None:
    """Print each line of `text`, marked for the screen."""
    for line in text.splitlines():
        put(f"{MARK} {line}\n")


class Doing:
    """Reporter of the run's current activity, at most once a second."""

    def __init__(self):
        self._said = 0.0

    def __call__(self, words: str, done: int = 0, total: int = 0) -> None:
        now = time.monotonic()
        if not done or now - self._said >= _EVERY_SECONDS:
            self._said = now
            put(f"{NOW} {words}" + (f" {done}/{total}" if total else "") + "\n")


doing = Doing()


class Story:
    """Reporter of a run's steps, evaluations and end, in the trainer."""

    def __init__(self, args: Namespace, steps: int):
        """
        Args:
            args: OpenRLHF's nested namespace.
            steps: the number of steps of the whole run, as far as known.
        """
        self._args, self._steps = args, steps
        self._first: int | None = None
        self._updates = 0
        self._seconds: deque[float] = deque(maxlen=_RECENT)

    def step(self, step: int, status: dict[str, float], rule: str = "") -> None:
        """Print a line about a step; missing metrics are left out.

        Args:
            step: the step's number.
            status: the step's metrics by their full names.
            rule: the name of the credit rule, which is the prefix of its metrics.
        """
        self._first = step if self._first is None else self._first
        self._updates += int(status.get("update/optimizer_steps", 0))
        self._seconds.append(status["timing/step_total"])
        left = max(self._steps - step, 0) * sum(self._seconds) / len(self._seconds)
        shown = [f"{step:{len(str(self._steps))}}/{self._steps}"]
        for name, key, form in _OF_A_STEP:
            value = status.get(key.format(rule=rule))
            if value is not None:
                shown.append(f"{name} {value:{form}}")
        shown += [f"{name} {status[key]:{form}}" for name, key, form in _IF_ANY if status.get(key)]
        say("  ".join([*shown, f"{self._seconds[-1]:.1f} s", f"ETA {clock(left)}"]))

    def evaluated(self, step: int, metrics: dict[str, float]) -> None:
        shown = {
            name.removeprefix("eval_"): value for name, value in metrics.items() if re.search(_OF_EVALUATION, name)
        }
        say(f"evaluation at step {step}: {', '.join(f'{name} {value:.3f}' for name, value in shown.items())}")

    def resumed(self, states: dict, prompts: int) -> None:
        """Say where the run goes on, of a checkpoint's states and the number of prompts of an episode."""
        step = states["global_step"]
        if states["episode"] >= self._args.train.num_episodes:
            model, more = f"its model goes to {self._args.ckpt.output_dir}", "raise --train.num_episodes to continue"
            say(f"nothing left to train: the run finished at step {step}, and {model}; {more}")
        else:
            place = f"episode {states['episode'] + 1}, {states['consumed']} of {prompts} prompts"
            say(f"resuming after step {step}: {place}")

    def ended(self, states: dict, moved: bool, whole: bool, learned: str = "") -> None:
        """Print a summary at the end: the fate of the rollouts, the output folders, and the commands to go on.

        The driver names the model once it is saved (`launch`).

        Args:
            states: the checkpoint states after the last step.
            moved: whether any weight has changed.
            whole: whether the run is complete.
            learned: how many rollouts had an advantage (`accounts.advantages`), if that is known.
        """
        args, step = self._args, states["global_step"]
        done = 0 if self._first is None else step - self._first + 1
        lines = [
            f"{'finished' if whole else 'ended'} after step {step} of {self._steps}: {done} steps in this attempt with "
            f"{self._updates} optimizer steps{'' if moved or not done else ', which changed NO WEIGHT'}"
        ]
        if accounts := states.get("ledger"):
            lost = {"filtered": accounts["filtered"], **accounts["failed"], "waiting": accounts["waiting"]}
            shown = ", ".join(f"{count} {reason}" for reason, count in lost.items() if count)
            trained = f"{accounts['trained']} trained of {accounts['dispatched']} sampled"
            lines.append(f"rollouts  {trained}{f' ({shown})' if shown else ''}")
        if learned:
            lines.append(f"learned   {learned}")
        if Path(args.ckpt.path, "_actor").is_dir():
            lines.append(f"resume    the same line with --ckpt.load_enable, from {args.ckpt.path}")
        else:
            lines.append("resume    no checkpoint was made (--ckpt.save_steps N makes one every N steps)")
        if args.logger.tensorboard_dir:
            lines.append(f"curves    tensorboard --logdir {args.logger.tensorboard_dir}")
            lines.append(f"report    python -m openrlhf_shear.cli.report {args.logger.tensorboard_dir} --output DIR")
        if args.dump_rollouts_every:
            lines.append(f"page      shear-rollouts {args.ckpt.path} --output rollouts.html")
        say("\n".join(lines))
        if whole:
            doing("saving the model")


def clock(seconds: float) -> str:
    """Format a duration as hours, minutes and seconds.

    >>> clock(106.2), clock(3723)
    ('1:46', '1:02:03')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


_OF_A_STEP = (
    ("reward", "rollout/reward_mean", ".2f"),
    ("mixed", "{rule}/mixed_groups", ".2f"),
    ("len", "rollout/response_length_mean", ".0f"),
    ("cut", "rollout/truncated_rate", ".0%"),
    ("loss", "policy_loss", ".4f"),
    ("kl", "kl", ".3f"),
    ("vllm_kl", "vllm_kl", ".4f"),
    ("gap", "vllm_gap_max", ".2f"),
    ("grad", "actor_grad_norm", ".2f"),
    ("credit", "{rule}/credit_share", ".0%"),
)
_OF_EVALUATION = r"pass\d|truncated|/"  # a suite's metrics are BENCHMARK/METRIC
_IF_ANY = (("NO REWARD", "reward_failed", ".0%"), ("SKIPPED UPDATES", "update/skipped_steps", ".0f"))
