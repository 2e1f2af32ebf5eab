"""The training jobs that `faults.py` breaks: it starts, watches and kills them, and compares them with intact jobs."""

import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import openrlhf_shear
from openrlhf_shear.rollouts.record import read_rollouts
from openrlhf_shear.tasks.arithmetic.problems import write_dataset
from openrlhf_shear.train.checkpoints import folders

TRAIN = ("-m", "openrlhf_shear.cli.train_ppo_ray")
PACKAGE = Path(openrlhf_shear.__file__).parent
POLICY, REWARD = PACKAGE / "tasks" / "arithmetic" / "shipped_policy", PACKAGE / "tasks" / "arithmetic" / "arithmetic.py"
GROUP, BATCH = 4, 8  # rollouts a prompt, prompts a step
METRIC = "metric/"
ASIDE = "SHEAR_FAULTS_ASIDE"  # environment variable of processes that a row starts beside the job
STEP = re.compile(r"Global step (\d+):")
PATIENCE = float(os.environ.get("OPENRLHF_SHEAR_TEST_PATIENCE", "1")) * 900.0  # seconds; a longer job hangs
WORDS = (
    *("--device", "cpu", "--algo.advantage.estimator", "shear", "--shear.window", "16", "--shear.stride", "4"),
    *("--actor.model_name_or_path", str(POLICY), "--algo.kl.init_coef", "0", "--vllm.enforce_eager"),
    *("--data.input_key", "prompt", "--data.label_key", "answer", "--data.max_len", "256", "--train.colocate_all"),
    *("--actor.num_gpus_per_node", "1", "--ref.num_gpus_per_node", "1", "--vllm.num_engines", "1"),
    *("--rollout.n_samples_per_prompt", str(GROUP), "--rollout.batch_size", str(BATCH)),
    *("--rollout.micro_batch_size", "8", "--train.batch_size", "16", "--train.micro_batch_size", "8"),
    *("--actor.adam.lr", "1e-4", "--ckpt.save_steps", "1", "--ckpt.max_num", "1", "--credit.dump_rollouts_every", "1"),
    "--verbose",
)


@dataclass
class Outcome:
    """The result of a row's job."""

    fault: str
    when: str
    trials: int = 0
    ends: str = ""
    seconds: list[float] = field(default_factory=list)  # after each fault, until the job continued or ended
    lost: int | None = None  # prompts never trained on
    doubled: int | None = None  # prompts trained on again
    equal: bool | None = None  # whether weights, optimizer state, ledger and metrics equal those of the intact job
    orphans: int = 0
    hangs: int = 0

    @property
    def name(self) -> str:
        """Name of the row's folder."""
        return re.sub(r"[^a-z0-9]+", "_", f"{self.fault} {self.when}".lower())


class Job:
    """A training command, which can be started again in the same folder."""

    def __init__(self, folder: Path, prompts: int, *words: str):
        self.folder, self.prompts, self._words = folder, prompts, words
        folder.mkdir(parents=True, exist_ok=True)
        write_dataset(folder / "train.jsonl", prompts, seed=0)
        self.log_file = folder / "log.txt"
        self.process: subprocess.Popen | None = None
        self.address = "local"  # of its Ray cluster
        self.program = TRAIN  # arguments of Python
        self.launcher: tuple[str, ...] = ()  # words before Python
        self.environment: dict[str, str] = {}  # more variables

    def start(self, *words: str) -> None:
        reward = [] if "--reward.remote_url" in self._words else ["--reward.remote_url", str(REWARD)]
        command = [
            *(*self.launcher, sys.executable, *self.program, *WORDS, *reward),
            *("--data.prompt_dataset", str(self.folder / "train.jsonl"), "--ckpt.path", str(self.folder / "ckpt")),
            *("--ckpt.output_dir", str(self.folder / "model"), "--logger.tensorboard_dir", str(self.folder / "tb")),
            *("--logger.wandb.run_name", "job", *self._words, *words),
        ]
        command = [str(word).replace("$RUN", str(self.folder)) for word in command]
        threads = {"OMP_NUM_THREADS": "1", "RAY_ADDRESS": self.address, "TOKENIZERS_PARALLELISM": "false"}
        with self.log_file.open("a") as log:
            environment = os.environ | threads | self.environment
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    @property
    def step(self) -> int:
        """Number of the last finished step."""
        return max((int(number) for number in STEP.findall(self.log)), default=0)

    def below(self, name: str = "") -> list[psutil.Process]:
        """Return the processes of the job whose command line matches the regular expression `name`, except `ASIDE`."""
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    if process.ppid() == os.getpid() and process.pid != self.process.pid:
                        os.waitpid(process.pid, 0)  # as init does: Ray's workers take a dead raylet in /proc for alive
                elif re.search(name, " ".join(process.cmdline())) and ASIDE not in process.environ():
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def wait_for(self, condition: Callable[[], object], every: float = 0.05) -> bool:
        """Wait for a condition; return whether it came true before the job ended or hung."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(every)
        return True

    def wait(self) -> int | None:
        """Wait for the end; return the exit code, or None if the job hung and was killed."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return None

    def kill(self) -> None:
        """Kill all its processes at once."""
        kill(self.process, *self.below())

    def finish(self, outcome: Outcome) -> int | None:
        """Wait for the end, count hangs and orphans, and return the exit code."""
        code = self.wait()
        outcome.hangs += code is None
        outcome.orphans += self.left()
        return code

    def run(self, outcome: Outcome, *words: str) -> int | None:
        """Start the job and `finish` it; note the seconds, and return the exit code."""
        started = time.monotonic()
        self.start(*words)
        code = self.finish(outcome)
        outcome.seconds.append(time.monotonic() - started)
        return code

    def left(self, patience: float = 90.0) -> int:
        """Return the number of processes that outlive the job by `patience` seconds, and kill them.

        Ray's agents look for a dead head for 60 s.
        """
        deadline = time.monotonic() + patience
        while (orphans := self.below()) and time.monotonic() < deadline:
            time.sleep(0.2)
        kill(*orphans)
        return len(orphans)

    def trained(self) -> Counter[str]:
        """Return how often each prompt was in a step, by the rollouts that every step wrote."""
        steps = sorted((self.folder / "ckpt" / "rollouts").glob("step*.parquet"))
        rows = [row for file in steps for row in read_rollouts(file)[0]]
        return Counter({prompt: count // GROUP for prompt, count in Counter(row.prompt for row in rows).items()})

    def state(self) -> dict[str, object]:
        """Return the lasting state at the end of the run, which must equal that of an intact run."""
        folder = self.folder / "ckpt" / "_actor"
        tag = (folder / folders.LATEST).read_text()
        kept: dict[str, object] = {"tag": tag}
        for file in sorted((self.folder / "model").glob("*.safetensors")):
            kept |= {f"model/{name}": tensor for name, tensor in load_file(file).items()}
        for file in sorted((folder / tag).glob("*.pt")):
            kept |= dict(_leaves(torch.load(file, map_location="cpu", weights_only=False), file.name))
        return kept | {f"{METRIC}{tag}": values for tag, values in self.metrics().items()}

    def metrics(self) -> dict[str, list[tuple[int, float]]]:
        """Return TensorBoard's scalars as it shows them, (step, value) each, without times."""
        board = EventAccumulator(str(self.folder / "tb" / "job"), size_guidance={"scalars": 0}).Reload()
        tags = [tag for tag in board.Tags()["scalars"] if not re.search("timing|seconds|share", tag)]
        return {tag: [(event.step, event.value) for event in board.Scalars(tag)] for tag in tags}


def kill(*processes: psutil.Process | subprocess.Popen) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def _leaves(value: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{name}/{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{name}/{number}")
    elif isinstance(value, torch.Tensor | int | float | str | bool | None):
        yield name, value


def same(first: dict[str, object], other: dict[str, object]) -> bool:
    """Compare two states bit for bit, but metrics within a tolerance.

    The last bits of a metric's mean depend on where in memory its terms lie. (Once a loss of 0.001 differed by 4e-9,
    with the same weights and optimizer state after it.)
    """

    def equal(name: str) -> bool:
        a, b = first[name], other[name]
        if name.startswith(METRIC):
            return len(a) == len(b) and np.allclose(a, b, rtol=1e-6, atol=1e-7)
        return torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b

    return first.keys() == other.keys() and all(map(equal, first))


class Bench:
    """The jobs of the rows, and the intact jobs to compare them with."""

    def __init__(self, folder: Path, trials: int, seed: int, prompts: int):
        self.folder, self.trials, self.random, self.prompts = folder, trials, random.Random(seed), prompts
        self._alone: dict[tuple, dict[str, object]] = {}

    def alone(self, prompts: int, *words: str) -> dict[str, object]:
        """Return the final state of a job without a fault."""
        key = (prompts, *words)
        if key not in self._alone:
            digest = hashlib.sha256(repr((WORDS, key)).encode()).hexdigest()[:8]
            job = Job(self.folder / f"alone_{digest}", prompts, *words)
            if not (job.folder / "model" / "config.json").exists():  # an earlier row may have run it
                job.start()
                assert job.finish(Outcome("nothing", "never")) == 0, job.log[-3000:]
            self._alone[key] = job.state()
        return self._alone[key]

    def job(self, name: str, prompts: int, *words: str) -> Job:
        shutil.rmtree(self.folder / name, ignore_errors=True)
        return Job(self.folder / name, prompts, *words)

    def compare(self, outcome: Outcome, job: Job, *words: str, without: str | None = None) -> Outcome:
        """Count lost and doubled prompts, and compare the states; names that start with `without` are left out."""
        trained, size = job.trained(), job.prompts
        outcome.lost = size - len(trained)
        outcome.doubled = sum(count - 1 for count in trained.values())
        ours, alone = (
            {name: value for name, value in state.items() if without is None or not name.startswith(without)}
            for state in (job.state(), self.alone(size, *words))
        )
        outcome.equal = same(ours, alone)
        return outcome
