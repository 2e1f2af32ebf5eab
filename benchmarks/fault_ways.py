"""The kinds of rows of `faults.py`: ways to break a run, and moments at which to do so."""

import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from fault_jobs import BATCH, GROUP, Bench, Job, Outcome, kill

from openrlhf_shear.train.checkpoints import folders

Row = Callable[[Bench], Outcome]
Moment = Callable[[Bench, Job], bool]  # waits for the moment; returns False where the job ended first
TWO_RANKS = ("--actor.num_gpus_per_node", "2", "--ref.num_gpus_per_node", "2", "--vllm.num_engines", "2")


# ── Moments ──


def _next_step(job: Job) -> bool:
    before = job.step
    return job.wait_for(lambda: job.step > before)


def at_random(bench: Bench, job: Job) -> bool:
    """Wait for some time after the next step; in every fourth trial, for some time of the start."""
    if bench.random.random() < 0.25:
        time.sleep(bench.random.uniform(0.0, 30.0))
        return job.process.poll() is None
    return in_a_step(bench, job)


def in_a_step(bench: Bench, job: Job) -> bool:
    """Wait for a random time after the next two steps, at most as long as the second step took.

    It falls anywhere in a step: generation, update or weight sync.
    """
    if not _next_step(job):
        return False
    began = time.monotonic()
    reached = _next_step(job)
    time.sleep(bench.random.uniform(0.0, time.monotonic() - began))
    return reached and job.process.poll() is None


def in_a_save(_: Bench, job: Job) -> bool:
    folder = job.folder / "ckpt" / "_actor"
    return _next_step(job) and job.wait_for(lambda: any(folder.glob(f"*{folders.PARTIAL}")), every=0.0005)


def in_a_sync(_: Bench, job: Job) -> bool:
    return _next_step(job) and job.wait_for(lambda: any(Path("/dev/shm").glob("openrlhf_shear_*")), every=0.0005)


# ── Ways to break a run ──


def ended(fault: str, when: str, moment: Moment, end: Callable[[Job], None]) -> Row:
    """End the run at a moment and start it again, once for each trial."""

    def row(bench: Bench) -> Outcome:
        outcome, codes = Outcome(fault, when), Counter()
        job = bench.job(outcome.name, bench.prompts)
        for trial in range(bench.trials + 1):
            job.start(*(["--ckpt.load_enable"] if trial else []))
            if trial == bench.trials or not moment(bench, job):
                break
            outcome.trials += 1
            started = time.monotonic()
            end(job)
            codes[job.finish(outcome)] += 1
            outcome.seconds.append(time.monotonic() - started)
        last = job.finish(outcome)
        by_itself = "".join(f"exit {code}, " for code in sorted({*codes} - {-9, None}))
        outcome.ends = f"{by_itself}goes on when started again, exit {last}"
        return bench.compare(outcome, job)

    return row


def survived(
    fault: str, when: str, victim: str, moment: Moment = in_a_step, words: tuple[str, ...] = (), share: float = 1.0
) -> Row:
    """Kill a process whose command line matches `victim`, again and again, each time once the step has ended.

    Args:
        share: of the bench's prompts and trials.
    """

    def row(bench: Bench) -> Outcome:
        outcome, trials = Outcome(fault, when), max(1, int(bench.trials * share))
        job = bench.job(outcome.name, max(int(bench.prompts * share), 5 * BATCH), *words)
        job.start("--train.max_restarts", str(trials))  # a fault that needs no restart uses none of them
        while outcome.trials < trials and moment(bench, job):
            victims, at = job.below(victim), job.step
            if not victims:
                continue
            kill(bench.random.choice(victims))
            outcome.trials += 1
            started = time.monotonic()
            if not job.wait_for(lambda at=at: job.step > at):
                outcome.hangs += job.process.poll() is None
                break
            outcome.seconds.append(time.monotonic() - started)
        code = job.finish(outcome)
        again = job.log.count("it starts again from its last checkpoint")
        outcome.ends = f"{f'starts again by itself {again} times' if again else 'goes on'}, exit {code}"
        return bench.compare(outcome, job, *words)

    return row


def rest(name: str, *words: str) -> Row:
    """Train on 21 prompts in batches of 8, on two ranks."""

    def row(bench: Bench) -> Outcome:
        outcome = Outcome(f"a partial batch of 5 prompts, 2 ranks, {name}", "last step", trials=1)
        job = bench.job(outcome.name, 2 * BATCH + 5, *TWO_RANKS, *words)
        code = job.run(outcome)
        (*_, (sampled, trained)) = re.findall(r"ledger: dispatched (\d+), trained (\d+)", job.log) or [("0", "0")]
        outcome.ends = f"trained {trained} of {sampled}, exit {code}"
        outcome.lost = job.prompts - int(trained) // GROUP
        return outcome

    return row
