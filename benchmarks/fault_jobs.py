"""The training jobs that `faults.py` breaks: started, watched, killed, and compared with the same job left alone."""

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

from openrlhf_shear.arithmetic.problems import write_dataset
from openrlhf_shear.fork import checkpoints
from openrlhf_shear.rollouts.record import read_rollouts

TRAIN = ("-m", "openrlhf_shear.cli.train_ppo_ray")
PACKAGE = Path(checkpoints.__file__).parents[1]
POLICY, REWARD = PACKAGE / "arithmetic" / "shipped_policy", PACKAGE / "arithmetic" / "arithmetic.py"
GROUP, BATCH = 4, 8  # rollouts a prompt, prompts a step
METRIC = "metric/"
STEP = re.compile(r"Global step (\d+):")
PATIENCE = float(os.environ.get("OPENRLHF_SHEAR_TEST_PATIENCE", "1")) * 900.0  # what takes longer hangs
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
        self.address = "local"  # of its Ray cluster
        self.program = TRAIN  # Python's words

    def start(self, *words: str) -> None:
        reward = [] if "--reward.remote_url" in self._words else ["--reward.remote_url", str(REWARD)]
        command = [
            *(sys.executable, *self.program, *WORDS, *reward),
            *("--data.prompt_dataset", str(self.folder / "train.jsonl"), "--ckpt.path", str(self.folder / "ckpt")),
            *("--ckpt.output_dir", str(self.folder / "model"), "--logger.tensorboard_dir", str(self.folder / "tb")),
            *("--logger.wandb.run_name", "job", *self._words, *words),
        ]
        threads = {"OMP_NUM_THREADS": "1", "RAY_ADDRESS": self.address, "TOKENIZERS_PARALLELISM": "false"}
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
        """Processes of the job in whose command line the regular expression `name` is found."""
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    if process.ppid() == os.getpid() and process.pid != self.process.pid:
                        os.waitpid(process.pid, 0)  # as init does: Ray's workers take a dead raylet in /proc for alive
                elif re.search(name, " ".join(process.cmdline())):
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

    def kill(self) -> None:
        """Every process of it at once."""
        kill(self.process, *self.below())

    def finish(self, outcome: Outcome) -> int | None:
        """Its exit code; hangs and orphans are noted."""
        code = self.wait()
        outcome.hangs += code is None
        outcome.orphans += self.left()
        return code

    def left(self, patience: float = 90.0) -> int:
        """Processes that are still there a while after the end (Ray's agents look for a dead head for 60 s); they are
        killed then."""
        deadline = time.monotonic() + patience
        while (orphans := self.below()) and time.monotonic() < deadline:
            time.sleep(0.2)
        kill(*orphans)
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
        return kept | {f"{METRIC}{tag}": values for tag, values in self.metrics().items()}

    def metrics(self) -> dict[str, list[tuple[int, float]]]:
        """TensorBoard's scalars as it shows them, (step, value) each; without those that are times."""
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


def same(one: dict[str, object], other: dict[str, object]) -> bool:
    """Bit for bit, but for metrics: the last bits of a mean depend on where in memory its terms lie (once, of a loss of
    0.001, 4e-9, with the same weights and optimizer state after it).
    """

    def equal(name: str) -> bool:
        a, b = one[name], other[name]
        if name.startswith(METRIC):
            return len(a) == len(b) and np.allclose(a, b, rtol=1e-6, atol=1e-7)
        return torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b

    return one.keys() == other.keys() and all(map(equal, one))


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
                assert job.finish(Outcome("nothing", "never")) == 0, job.log[-3000:]
            self._alone[key] = job.state()
        return self._alone[key]

    def job(self, name: str, prompts: int, *words: str) -> Job:
        shutil.rmtree(self.folder / name, ignore_errors=True)
        return Job(self.folder / name, prompts, *words)

    def compare(self, outcome: Outcome, job: Job, *words: str, without: str | None = None) -> Outcome:
        """Fill in what was lost, doubled or different, but for what has names that start as `without`."""
        trained, size = job.trained(), job.prompts
        outcome.lost = size - len(trained)
        outcome.doubled = sum(count - 1 for count in trained.values())
        ours, alone = (
            {name: value for name, value in state.items() if without is None or not name.startswith(without)}
            for state in (job.state(), self.alone(size, *words))
        )
        outcome.equal = same(ours, alone)
        return outcome
