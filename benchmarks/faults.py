"""Break a real training run in every way we know of, and see what it loses.

    python benchmarks/faults.py --output faults.json             # every row: hours on two cores
    python benchmarks/faults.py --rows run engine --trials 3     # some of them
    python benchmarks/faults.py --list

Each row is a job of the CPU profile (Ray, DeepSpeed, vLLM, the built-in arithmetic policy), broken as the row says, and
compared with the same job left alone: the prompts it trained on, its final weights, optimizer state, ledger and every
step's metrics, bit for bit. Rows whose moment is random have `--trials` of them; those that end a run start it again
after each.
"""

import argparse
import ctypes
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
import torch
from measure import environment, print_table
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from openrlhf_shear.arithmetic.problems import write_dataset
from openrlhf_shear.fork import checkpoints
from openrlhf_shear.rollouts.record import read_rollouts

PACKAGE = Path(checkpoints.__file__).parents[1]
POLICY, REWARD = PACKAGE / "arithmetic" / "shipped_policy", PACKAGE / "arithmetic" / "arithmetic.py"
GROUP, BATCH = 4, 8  # rollouts a prompt, prompts a step
STEP = re.compile(r"Global step (\d+):")
PATIENCE = float(os.environ.get("OPENRLHF_SHEAR_TEST_PATIENCE", "1")) * 900.0  # what takes longer hangs
WORDS = (
    *("--device", "cpu", "--algo.advantage.estimator", "shear", "--shear.window", "16", "--shear.stride", "4"),
    *("--actor.model_name_or_path", str(POLICY), "--algo.kl.init_coef", "0", "--vllm.enforce_eager"),
    *("--data.input_key", "prompt", "--data.label_key", "answer", "--data.max_len", "256", "--train.colocate_all"),
    *("--actor.num_gpus_per_node", "1", "--ref.num_gpus_per_node", "1", "--vllm.num_engines", "1"),
    *("--rollout.n_samples_per_prompt", str(GROUP), "--rollout.batch_size", str(BATCH)),
    *("--rollout.micro_batch_size", "8", "--train.batch_size", "16", "--train.micro_batch_size", "8"),
    *("--actor.adam.lr", "1e-4", "--ckpt.save_steps", "1", "--ckpt.max_num", "1", "--shear.dump_rollouts_every", "1"),
)


@dataclass
class Outcome:
    """What became of a row's job."""

    fault: str
    when: str
    trials: int = 0
    ends: str = ""
    seconds: list[float] = field(default_factory=list)  # until it went on, or had ended, after each fault
    lost: int | None = None  # prompts never trained on
    doubled: int | None = None
    equal: bool | None = None  # weights, optimizer state, ledger and metrics, to the job left alone
    orphans: int = 0
    hangs: int = 0

    @property
    def name(self) -> str:
        """Of its folder."""
        return re.sub(r"[^a-z0-9]+", "_", f"{self.fault} {self.when}".lower())


class Job:
    """One training command, which may be started again in the same folder."""

    def __init__(self, folder: Path, prompts: int, *words: str):
        self.folder, self.prompts, self._words = folder, prompts, words
        folder.mkdir(parents=True, exist_ok=True)
        write_dataset(folder / "train.jsonl", prompts, seed=0)
        self._log = folder / "log.txt"
        self.process: subprocess.Popen | None = None

    def start(self, *words: str) -> None:
        reward = [] if "--reward.remote_url" in self._words else ["--reward.remote_url", str(REWARD)]
        command = [
            *(sys.executable, "-m", "openrlhf_shear.cli.train_ppo_ray", *WORDS, *reward),
            *("--data.prompt_dataset", str(self.folder / "train.jsonl"), "--ckpt.path", str(self.folder / "ckpt")),
            *("--ckpt.output_dir", str(self.folder / "model"), "--logger.tensorboard_dir", str(self.folder / "tb")),
            *("--logger.wandb.run_name", "job", *self._words, *words),
        ]
        threads = {"OMP_NUM_THREADS": "1", "RAY_ADDRESS": "local", "TOKENIZERS_PARALLELISM": "false"}
        with self._log.open("a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | threads)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def step(self) -> int:
        """The last one that ended."""
        return max((int(number) for number in STEP.findall(self.log)), default=0)

    def below(self, name: str = "") -> list[psutil.Process]:
        """Processes of the job whose command line has `name`."""
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                if name in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def wait_for(self, condition: Callable[[], object], every: float = 0.05) -> bool:
        """Whether a condition comes true before the job ends, or hangs."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(every)
        return True

    def wait(self) -> int | None:
        """Its exit code; None if it hangs, in which case it is killed."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return None

    def left(self, patience: float = 30.0) -> int:
        """Processes that are still there a while after the end; they are killed then."""
        deadline = time.monotonic() + patience
        while (orphans := self.below()) and time.monotonic() < deadline:
            time.sleep(0.2)
        for orphan in orphans:
            orphan.kill()
        return len(orphans)

    def trained(self) -> Counter[str]:
        """How often each prompt was in a step, by the rollouts that every step wrote down."""
        steps = sorted((self.folder / "ckpt" / "rollouts").glob("step*.parquet"))
        rows = [row for file in steps for row in read_rollouts(file)[0]]
        return Counter({prompt: count // GROUP for prompt, count in Counter(row.prompt for row in rows).items()})

    def state(self) -> dict[str, object]:
        """Everything that the end of the run left behind and another could not differ in."""
        folder = self.folder / "ckpt" / "_actor"
        tag = (folder / checkpoints.LATEST).read_text()
        kept: dict[str, object] = {"tag": tag}
        for file in sorted((self.folder / "model").glob("*.safetensors")):
            kept |= {f"model/{name}": tensor for name, tensor in load_file(file).items()}
        for file in sorted((folder / tag).glob("*.pt")):
            kept |= dict(_leaves(torch.load(file, map_location="cpu", weights_only=False), file.name))
        return kept | {f"metric/{tag}": values for tag, values in self.metrics().items()}

    def metrics(self) -> dict[str, list[tuple[int, float]]]:
        """TensorBoard's scalars as it shows them, (step, value) each; without those that are times."""
        board = EventAccumulator(str(self.folder / "tb" / "job"), size_guidance={"scalars": 0}).Reload()
        tags = [tag for tag in board.Tags()["scalars"] if not re.search("timing|seconds|share", tag)]
        return {tag: [(event.step, event.value) for event in board.Scalars(tag)] for tag in tags}


def _leaves(value: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{name}/{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{name}/{number}")
    elif isinstance(value, torch.Tensor | int | float | str | bool | None):
        yield name, value


def same(one: dict[str, object], other: dict[str, object]) -> bool:
    def equal(a: object, b: object) -> bool:
        return torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b

    return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)


class Bench:
    """The jobs of the rows, and those left alone that they are compared with."""

    def __init__(self, folder: Path, trials: int, seed: int, prompts: int):
        self.folder, self.trials, self.random, self.prompts = folder, trials, random.Random(seed), prompts
        self._alone: dict[tuple, dict[str, object]] = {}

    def alone(self, prompts: int, *words: str) -> dict[str, object]:
        """The state at the end of a job that nothing happens to."""
        key = (prompts, *words)
        if key not in self._alone:
            digest = hashlib.sha256(repr((WORDS, key)).encode()).hexdigest()[:8]
            job = Job(self.folder / f"alone_{digest}", prompts, *words)
            if not (job.folder / "model" / "config.json").exists():  # it may be there, of rows before
                job.start()
                assert job.wait() == 0, job.log[-3000:]
                job.left()
            self._alone[key] = job.state()
        return self._alone[key]

    def job(self, name: str, prompts: int, *words: str) -> Job:
        shutil.rmtree(self.folder / name, ignore_errors=True)
        return Job(self.folder / name, prompts, *words)

    def compare(self, outcome: Outcome, job: Job, *words: str) -> Outcome:
        """Fill in what was lost, doubled or different."""
        trained, size = job.trained(), job.prompts
        outcome.lost = size - len(trained)
        outcome.doubled = sum(count - 1 for count in trained.values())
        outcome.equal = same(job.state(), self.alone(size, *words))
        return outcome

    # ── Ways to break a run ──

    def run_killed(self, outcome: Outcome, moment: Callable[[Job], bool], who: str = "") -> Outcome:
        """Kill the whole run (or its driver alone) at a moment, start it again, as often as there are trials."""
        job = self.job(outcome.name, self.prompts)
        for trial in range(self.trials + 1):
            job.start(*(["--ckpt.load_enable"] if trial else []))
            if trial == self.trials or not moment(job):
                break
            outcome.trials += 1
            started = time.monotonic()
            for process in [job.process, *([] if who == "driver" else job.below())]:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            job.wait()
            outcome.orphans += job.left()
            outcome.seconds.append(time.monotonic() - started)
        code = job.wait()
        outcome.hangs += code is None
        outcome.ends = f"goes on when started again, exit {code}"
        outcome.orphans += job.left()
        return self.compare(outcome, job)

    def part_killed(self, outcome: Outcome, name: str, during: str = "") -> Outcome:
        """Kill one process of a run again and again, and wait each time until steps end again."""
        job = self.job(outcome.name, self.prompts)
        job.start()
        for _ in range(self.trials):
            before = job.step
            if not job.wait_for(lambda before=before: job.step > before):
                break
            if during and not job.wait_for(lambda: any(Path("/dev/shm").glob(during)), every=0.001):
                break
            time.sleep(0.0 if during else self.random.uniform(0.0, 1.5))
            victims = job.below(name)
            if not victims:
                continue
            self.random.choice(victims).kill()
            outcome.trials += 1
            started, at = time.monotonic(), job.step
            if not job.wait_for(lambda at=at: job.step > at + 1):
                outcome.hangs += job.process.poll() is None
                break
            outcome.seconds.append(time.monotonic() - started)
        code = job.wait()
        outcome.hangs += code is None
        outcome.ends = f"goes on, exit {code}"
        outcome.orphans += job.left()
        return self.compare(outcome, job)

    def ends_by_itself(
        self, outcome: Outcome, *words: str, prompts: int = 16, prepare: Callable[[Job], None] | None = None
    ) -> Outcome:
        """A job that is broken from the start: how it ends."""
        job = self.job(outcome.name, prompts, *words)
        if prepare is not None:
            prepare(job)
        started = time.monotonic()
        job.start()
        code = job.wait()
        outcome.trials, outcome.hangs = 1, int(code is None)
        outcome.seconds.append(time.monotonic() - started)
        said = re.findall(r"(?:the run ended|rror): (.*)", job.log)
        outcome.ends = f"exit {code}: {said[-1][:160] if said else ''}"
        outcome.orphans += job.left()
        return outcome


def at_random(bench: Bench) -> Callable[[Job], bool]:
    """Some time after the next step has ended; every fourth trial while everything starts."""

    def moment(job: Job) -> bool:
        if bench.random.random() < 0.25:
            time.sleep(bench.random.uniform(0.0, 30.0))
            return job.process.poll() is None
        before = job.step
        reached = job.wait_for(lambda: job.step > before)
        time.sleep(bench.random.uniform(0.0, 3.0))
        return reached and job.process.poll() is None

    return moment


def in_a_save(job: Job) -> bool:
    before = job.step
    folder = job.folder / "ckpt" / "_actor"
    return job.wait_for(lambda: job.step > before) and job.wait_for(
        lambda: any(folder.glob(f"*{checkpoints.PARTIAL}")), every=0.0005
    )


def in_a_sync(job: Job) -> bool:
    before = job.step
    return job.wait_for(lambda: job.step > before) and job.wait_for(
        lambda: any(Path("/dev/shm").glob("openrlhf_shear_*")), every=0.0005
    )


ROWS: dict[str, Callable[[Bench], Outcome]] = {}


def row(function: Callable[[Bench], Outcome]) -> Callable[[Bench], Outcome]:
    ROWS[function.__name__] = function
    return function


@row
def run(bench: Bench) -> Outcome:
    return bench.run_killed(Outcome("every process killed", "at random"), at_random(bench))


@row
def run_saving(bench: Bench) -> Outcome:
    return bench.run_killed(Outcome("every process killed", "inside a save"), in_a_save)


@row
def run_syncing(bench: Bench) -> Outcome:
    return bench.run_killed(Outcome("every process killed", "inside a weight sync"), in_a_sync)


@row
def other_seed(bench: Bench) -> Outcome:
    """Nothing happens to it; it must differ, or the other rows' "equal" shows nothing."""
    outcome = Outcome("another --train.seed", "from the start")
    job = bench.job(outcome.name, 40, "--train.seed", "7")
    started = time.monotonic()
    job.start()
    code = job.wait()
    outcome.trials, outcome.seconds, outcome.ends = 1, [time.monotonic() - started], f"another run, exit {code}"
    outcome.orphans, outcome.hangs = job.left(), int(code is None)
    return bench.compare(outcome, job)


@row
def driver(bench: Bench) -> Outcome:
    return bench.run_killed(Outcome("driver killed", "at random"), at_random(bench), who="driver")


@row
def engine(bench: Bench) -> Outcome:
    return bench.part_killed(Outcome("rollout engine's actor killed", "at random"), "ray::RolloutRayActor")


@row
def engine_core(bench: Bench) -> Outcome:
    return bench.part_killed(Outcome("vLLM's core killed", "at random"), "VLLM::EngineCore")


@row
def engine_worker(bench: Bench) -> Outcome:
    return bench.part_killed(Outcome("vLLM's worker killed", "at random"), "VLLM::Worker")


@row
def engine_syncing(bench: Bench) -> Outcome:
    outcome = Outcome("vLLM's core killed", "inside a weight sync")
    return bench.part_killed(outcome, "VLLM::EngineCore", during="openrlhf_shear_*")


@row
def pool(bench: Bench) -> Outcome:
    return bench.part_killed(Outcome("reward pool killed", "at random"), "ray::RewardPoolActor")


@row
def sigterm(bench: Bench) -> Outcome:
    """SIGTERM at a random moment, then the rest of the run."""
    outcome = Outcome("SIGTERM to the driver", "at random")
    job = bench.job("sigterm", bench.prompts)
    moment, codes = at_random(bench), Counter()
    for trial in range(bench.trials + 1):
        job.start(*(["--ckpt.load_enable"] if trial else []))
        if trial == bench.trials or not moment(job):
            break
        outcome.trials += 1
        started = time.monotonic()
        job.process.send_signal(signal.SIGTERM)
        codes[job.wait()] += 1
        outcome.seconds.append(time.monotonic() - started)
        outcome.orphans += job.left()
    code = job.wait()
    outcome.hangs = codes[None] + (code is None)
    outcome.ends = f"exits {dict(codes)}, goes on when started again, exit {code}"
    outcome.orphans += job.left()
    return bench.compare(outcome, job)


@row
def rank(bench: Bench) -> Outcome:
    """One of two ranks, with a supervisor that starts the run again."""
    words = ("--actor.num_gpus_per_node", "2", "--ref.num_gpus_per_node", "2", "--vllm.num_engines", "2")
    words = (*words, "--ds.zero_stage", "3")
    outcome = Outcome("an actor rank killed, --train.max_restarts", "at random")
    job = bench.job("rank", bench.prompts // 2, *words, "--train.max_restarts", str(bench.trials))
    job.start()
    for _ in range(min(bench.trials, 5)):
        before = job.step
        if not job.wait_for(lambda before=before: job.step > before):
            break
        time.sleep(bench.random.uniform(0.0, 2.0))
        victims, at = job.below("ray::ShearPolicyActor"), job.step
        if not victims:
            continue
        bench.random.choice(victims).kill()
        outcome.trials += 1
        started = time.monotonic()
        if not job.wait_for(lambda at=at: job.step > at):
            outcome.hangs += job.process.poll() is None
            break
        outcome.seconds.append(time.monotonic() - started)
    code = job.wait()
    outcome.hangs += code is None
    outcome.ends = f"starts again by itself, exit {code}"
    outcome.orphans += job.left()
    return bench.compare(outcome, job, *words)


@row
def truncated(bench: Bench) -> Outcome:
    """The newest checkpoint cut in half: the one before is gone on with."""
    outcome = Outcome("newest checkpoint cut in half", "before a resume")
    job = bench.job("truncated", 40, "--ckpt.max_num", "2")
    job.start()
    job.wait_for(lambda: job.step >= 3)
    for process in [job.process, *job.below()]:
        process.kill()
    job.wait()
    job.left()
    folder = job.folder / "ckpt" / "_actor"
    newest = folder / checkpoints.names(folder)[-1]
    for file in newest.glob("*.pt"):
        os.truncate(file, file.stat().st_size // 2)
    started = time.monotonic()
    job.start("--ckpt.load_enable")
    code = job.wait()
    outcome.trials, outcome.seconds = 1, [time.monotonic() - started]
    outcome.hangs, outcome.orphans = int(code is None), job.left()
    outcome.ends = f"passed over, exit {code}" if "passed over" in job.log else f"exit {code}"
    return bench.compare(outcome, job)


@row
def finished(bench: Bench) -> Outcome:
    """A finished run, with a partial last batch, started again."""
    outcome = Outcome("finished run", "started again")
    job = bench.job("finished", 29)
    job.start()
    job.wait()
    job.left()
    steps = job.step
    started = time.monotonic()
    job.start("--ckpt.load_enable")
    code = job.wait()
    outcome.trials, outcome.seconds = 1, [time.monotonic() - started]
    outcome.hangs, outcome.orphans = int(code is None), job.left()
    nothing = "nothing left to do" in job.log and job.step == steps
    outcome.ends = f"{'nothing left to do' if nothing else 'TRAINS ON'}, exit {code}"
    return bench.compare(outcome, job)


def _rest(bench: Bench, name: str, *words: str) -> Outcome:
    two = ("--actor.num_gpus_per_node", "2", "--ref.num_gpus_per_node", "2", "--vllm.num_engines", "2")
    outcome = Outcome(f"a rest of 5 prompts, 2 ranks, {name}", "last step")
    bench.ends_by_itself(outcome, *two, *words, prompts=21)
    log = (bench.folder / outcome.name / "log.txt").read_text()
    counts = re.findall(r"ledger: dispatched (\d+), trained (\d+)", log)
    outcome.ends += f"trained {counts[-1][1]} of {counts[-1][0]}" if counts else ""
    return outcome


@row
def rest_fixed(bench: Bench) -> Outcome:
    return _rest(bench, "fixed batches, ZeRO-3", "--ds.zero_stage", "3")


@row
def rest_dynamic(bench: Bench) -> Outcome:
    tokens = ("--rollout.max_tokens_per_gpu", "600", "--train.max_tokens_per_gpu", "600")
    return _rest(bench, "dynamic batches", "--train.dynamic_batch_enable", *tokens)


@row
def rest_grpo(bench: Bench) -> Outcome:
    return _rest(bench, "group_norm", "--algo.advantage.estimator", "group_norm", "--shear.dump_rollouts_every", "0")


@row
def nan_update(bench: Bench) -> Outcome:
    words = ("--actor.adam.lr", "1e38", "--actor.lr_scheduler", "constant")
    return bench.ends_by_itself(Outcome("weights that overflow", "in the first update"), *words, prompts=40)


@row
def nan_weight(bench: Bench) -> Outcome:
    def prepare(job: Job) -> None:
        shutil.copytree(POLICY, job.folder / "policy")
        file = job.folder / "policy" / "model.safetensors"
        from safetensors.torch import save_file

        weights = load_file(file)
        next(iter(weights.values())).view(-1)[0] = float("nan")
        save_file(weights, file, metadata={"format": "pt"})

    outcome = Outcome("a NaN weight", "at load")
    policy = bench.folder / outcome.name / "policy"
    return bench.ends_by_itself(outcome, "--actor.model_name_or_path", str(policy), prepare=prepare)


def _reward(bench: Bench, name: str, text: str) -> Outcome:
    file = bench.folder / f"{name.replace(' ', '_')}.py"
    file.write_text(text)
    return bench.ends_by_itself(
        Outcome(f"a reward file that {name}", "from the start"), "--reward.remote_url", str(file), prompts=40
    )


@row
def reward_syntax(bench: Bench) -> Outcome:
    return _reward(bench, "is no Python", "def reward_func(queries, prompts, labels:\n")


@row
def reward_raises(bench: Bench) -> Outcome:
    return _reward(bench, "always raises", "def reward_func(queries, prompts, labels):\n    raise KeyError('no')\n")


@row
def reward_signature(bench: Bench) -> Outcome:
    return _reward(bench, "is TRL's", "def reward_func(prompts, completions, **kwargs):\n    return [0.0]\n")


@row
def reward_nan(bench: Bench) -> Outcome:
    text = "def reward_func(queries, prompts, labels):\n    return {'rewards': float('nan')}\n"
    return _reward(bench, "gives NaN", text)


@row
def reward_hangs(bench: Bench) -> Outcome:
    return _reward(bench, "hangs", "import time\ndef reward_func(queries, prompts, labels):\n    time.sleep(3600)\n")


@row
def reward_server_gone(bench: Bench) -> Outcome:
    words = ("--reward.remote_url", "http://127.0.0.1:9/get_reward")
    return bench.ends_by_itself(Outcome("a reward server that is gone", "from the start"), *words, prompts=40)


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of 40 MB in `folder`, where that may be made."""
    folder.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", folder], capture_output=True).returncode
    try:
        yield made == 0
    finally:
        if made == 0:
            subprocess.run(["umount", "-l", folder], check=True)


@row
def disk_full(bench: Bench) -> Outcome:
    outcome = Outcome("a disk of 40 MB that fills up", "at the first save")
    with small_disk(bench.folder / "small") as made:
        if not made:
            outcome.ends = "not tried: no file system can be mounted here"
            return outcome
        (bench.folder / "small" / "ballast").write_bytes(bytes(30_000_000))
        return bench.ends_by_itself(outcome, "--ckpt.path", str(bench.folder / "small" / "ckpt"), prompts=40)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help="see --list")
    parser.add_argument("--list", action="store_true", help="the rows")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE.json", help="the table of what --output wrote, for docs/"
    )
    parser.add_argument("--trials", type=int, default=20, help="faults of a row whose moment is random")
    parser.add_argument("--prompts", type=int, default=400, help=f"of a job whose moments are random, {BATCH} a step")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--folder", type=Path, help="where the jobs run; kept (default: one that is deleted)")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="rows that are there already stay")
    args = parser.parse_args()
    if args.list:
        print("\n".join(ROWS))
        return
    if args.markdown:
        print("\n".join(markdown(json.loads(args.markdown.read_text())["rows"])))
        return
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: what loses its parent is ours to see
    kept = json.loads(args.output.read_text()) if args.output and args.output.exists() else {"rows": {}}
    kept["environment"] = environment("cpu")
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(args.folder or Path(temporary), args.trials, args.seed, args.prompts)
        bench.folder.mkdir(parents=True, exist_ok=True)
        for name in args.rows:
            print(f"── {name}", flush=True)
            kept["rows"][name] = asdict(ROWS[name](bench))
            print(json.dumps(kept["rows"][name]), flush=True)
            if args.output:
                args.output.write_text(json.dumps(kept, indent=1) + "\n")
    show(kept["rows"])


COLUMNS = ("fault", "when", "trials", "ends", "seconds", "lost", "doubled", "equal", "orphans", "hangs")


def cells(one: dict) -> dict[str, str]:
    """A row as text; of the seconds the median and the most."""

    def text(name: str, value: object) -> str:
        if name == "seconds":
            ordered = sorted(value)
            return f"{ordered[len(ordered) // 2]:.0f} ({ordered[-1]:.0f})" if ordered else "-"
        return "-" if value is None else str(value)

    return {name: text(name, one[name]) for name in COLUMNS}


def show(rows: dict[str, dict]) -> None:
    print_table("faults", [cells(one) for one in rows.values()], {name: name for name in COLUMNS})


def markdown(rows: dict[str, dict]) -> Iterator[str]:
    yield f"| {' | '.join(COLUMNS)} |"
    yield "| --- " * len(COLUMNS) + "|"
    for one in rows.values():
        yield f"| {' | '.join(text.replace('|', '/') for text in cells(one).values())} |"


if __name__ == "__main__":
    main()
