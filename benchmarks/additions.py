"""What each of the fork's parts adds to a step of plain OpenRLHF, in percent, on the job of `make run`.

    python benchmarks/additions.py --output benchmarks/results/additions.json

Every process of the run takes the wall time of the calls in `PARTS`; a call inside another counts for the inner one.
Steps 1 and 2 do not count. The percentages are of what is left of the steps. Evaluation and saving are off. A dump is
made of each 20th step, by a thread beside the next step, so that its time is an upper bound.
"""

import atexit
import functools
import importlib.abc
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parents[1]
DUMP = "dump of each 20th step, with its evidence"
PARTS = {  # module: class (or "") : functions, part
    "openrlhf_shear.credit.groups": ("GroupCollector", "add add_late work take", "credit"),
    "openrlhf_shear.credit.checks": ("", "checked_evidence", DUMP),
    "openrlhf_shear.credit.apply": ("", "weighed token_advantages", "credit"),
    "openrlhf_shear.train.sampling.engine_gap": ("", "measure GapWatch.sampled GapWatch.judge", "gap watch"),
    "openrlhf_shear.train.update.update": ("Meter", "add add_loss means", "meter"),
    "openrlhf_shear.credit.token_gradients": ("CreditProbe", "look", "probe of token gradients"),
    "openrlhf_shear.train.update.arrival": ("Arrival", "begin_micro_batch check _collect stop", "arrival probe"),
    "openrlhf_shear.train.run.dump": ("RolloutDump", "write _write", DUMP),
    "openrlhf_shear.train.run.books": ("Books", "judge_rewards close balance refuse_untrained", "books"),
    "vllm.v1.sample.sampler": ("Sampler", "compute_logprobs gather_logprobs", "log-probs of the engine"),
    "vllm.v1.engine.logprobs": ("LogprobsProcessor", "_update_sample_logprobs", "log-probs of the engine"),
}
_FOLDER = "ADDITIONS_FOLDER"  # environment variable: where processes write their times
_FIRST = 2  # steps before the first that counts
_FLUSH_SECONDS = 0.5


class Times(importlib.abc.MetaPathFinder):
    """Import hook that takes the time of the calls in `PARTS`, in this process."""

    def __init__(self, folder: str):
        self._file = Path(folder, f"{os.getpid()}.json")
        self._calls: list[tuple[str, float, float]] = []  # part, time of day, seconds
        self._inside, self._lock, self._flushed = threading.local(), threading.Lock(), time.time()
        atexit.register(self._flush)

    def find_spec(self, name, path, target=None):
        """Return the module's own spec, whose loader also wraps the functions."""
        if name not in PARTS:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(spec for spec in others if spec)
        execute = spec.loader.exec_module

        def wrap(module) -> None:
            execute(module)
            owner, names, part = PARTS[name]
            for name_there in names.split():
                *owners, function = [*owner.split(), *name_there.split(".")]
                holder = functools.reduce(getattr, owners, module)
                there = holder.__dict__[function]
                is_static = isinstance(there, staticmethod)
                timed = self._timed(part, there.__func__ if is_static else there)
                setattr(holder, function, staticmethod(timed) if is_static else timed)

        spec.loader.exec_module = wrap
        return spec

    def _timed(self, part: str, function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            outer, self._inside.seconds = getattr(self._inside, "seconds", 0.0), 0.0
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                seconds = time.perf_counter() - began
                with self._lock:
                    self._calls.append((part, time.time(), seconds - self._inside.seconds))
                self._inside.seconds = outer + seconds
                if time.time() - self._flushed > _FLUSH_SECONDS:
                    self._flush()

        return call

    def _flush(self) -> None:
        with self._lock:
            calls, self._calls, self._flushed = self._calls, [], time.time()
        with self._file.open("a") as file:
            file.writelines(json.dumps(call) + "\n" for call in calls)


def measured(steps: int, seed: int) -> tuple[float, dict[str, float]]:
    """Return the seconds of the steps that count, and of each part in them."""
    from measure import arithmetic_job

    with tempfile.TemporaryDirectory() as folder:
        times, screen = Path(folder, "times"), Path(folder, "screen")
        times.mkdir()
        start = f"import sys; sys.path.append({str(HERE / 'benchmarks')!r}); import additions; additions.take()"
        Path(folder, "sitecustomize.py").write_text(f"{start}\n")
        variables = {"SEED": str(seed), _FOLDER: str(times), "PYTHONPATH": f"{HERE}:{folder}"}
        words = ("--eval.steps", str(10 * steps), "--credit.dump_rollouts_every", "20")
        ends = {}
        with screen.open("w") as log:
            job = arithmetic_job(Path(folder, "run"), log, steps, *words, **variables)
            while job.poll() is None:
                time.sleep(0.02)
                for step in re.findall(rf"^ *(\d+)/{steps} ", screen.read_text(errors="replace"), re.MULTILINE):
                    ends.setdefault(int(step), time.time())
        if job.returncode:
            raise SystemExit(f"additions.py: the job ended with {job.returncode}:\n{screen.read_text()[-3000:]}")
        spent: dict[str, float] = defaultdict(float)
        for file in times.iterdir():
            for part, when, seconds in map(json.loads, file.read_text().splitlines()):
                if ends[_FIRST] < when <= ends[steps]:
                    spent[part] += seconds
        return ends[steps] - ends[_FIRST], spent


def take() -> None:
    """Take times in this process."""
    sys.meta_path.insert(0, Times(os.environ[_FOLDER]))


def main() -> None:
    from measure import environment, print_table, script_parser, write_json

    parser = script_parser(__doc__)
    parser.add_argument("--steps", type=int, default=22, help="steps of a run (default 22)")
    parser.add_argument("--rounds", type=int, default=3, help="runs, each with another seed (default 3)")
    args = parser.parse_args()
    about, total, spent, of_rounds = environment(), 0.0, dict.fromkeys((part for *_, part in PARTS.values()), 0.0), []
    for seed in range(args.rounds):
        seconds, found = measured(args.steps, seed)
        total += seconds
        spent = {part: spent[part] + found[part] for part in spent}
        of_rounds.append({part: round(100 * found[part] / (seconds - sum(found.values())), 2) for part in spent})
    plain = total - sum(spent.values())
    whole = sum(spent.values())
    spent = {"all": whole, "all without a dump, as make run has it": whole - spent[DUMP]} | dict(
        sorted(spent.items(), key=lambda item: -item[1])
    )
    rows = [{"part": part, "percent": round(100 * seconds / plain, 2)} for part, seconds in spent.items()]
    print_table("percent of a step of plain OpenRLHF", rows, {"part": "part", "percent": "percent"})
    found = {"seconds_of_a_step": round(total / args.rounds / (args.steps - _FIRST), 3)}
    write_json(args.output, {"environment": about} | found | {"rows": rows, "rounds": of_rounds})


if __name__ == "__main__":
    main()
