"""Real Ray, real DeepSpeed actors, real vLLM engines, on logical GPUs; the built-in policy and real rollouts' texts.

One Ray cluster serves the whole folder; actor groups and engines live as long as the test module that asked for them.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import openrlhf_shear.arithmetic

ROOT = Path(__file__).parents[2]
POLICY = Path(openrlhf_shear.arithmetic.__file__).parent / "shipped_policy"
ARITHMETIC_REWARD = POLICY.parent / "reward.py"
GROUP_SIZE = 4


@pytest.fixture(scope="session")
def policy() -> Path:
    """The Hugging Face folder of the built-in policy."""
    return POLICY


@pytest.fixture(scope="session")
def cluster():
    """A Ray cluster of this process's own, with the CPU backend in every worker."""
    import ray

    from openrlhf_shear.fork import cpu_backend, launch
    from openrlhf_shear.rewards.pool import RewardSettings

    cpu_backend.install()
    environment = dict(cpu_backend.ENVIRONMENT, OMP_NUM_THREADS="1")
    ray.init(
        address="local",
        num_gpus=16,  # logical ones: the placement groups of one module are still there in the next
        num_cpus=20,
        include_dashboard=False,
        runtime_env={"worker_process_setup_hook": cpu_backend.WORKER_SETUP_HOOK, "env_vars": environment},
    )
    launch.install_hooks(cpu_backend.MIXINS, RewardSettings(str(ARITHMETIC_REWARD)))
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def arguments(tmp_path_factory):
    """A function: extra command-line words -> OpenRLHF's nested namespace, through the fork's real command line."""
    from openrlhf_shear.arithmetic.problems import write_dataset
    from openrlhf_shear.cli.train_ppo_ray import parse

    folder = tmp_path_factory.mktemp("arguments")
    write_dataset(folder / "train.jsonl", 64, seed=0)

    def build(*words: str):
        from openrlhf.utils.config import hierarchize

        flat = parse(
            [
                *("--device", "cpu", "--algo.advantage.estimator", "shear", "--shear.window", "16"),
                *("--shear.stride", "4", "--actor.model_name_or_path", str(POLICY), "--algo.kl.init_coef", "0"),
                *("--reward.remote_url", str(ARITHMETIC_REWARD)),
                *("--data.prompt_dataset", str(folder / "train.jsonl"), "--data.input_key", "prompt"),
                *("--data.label_key", "answer", "--data.max_len", "256", "--rollout.batch_size", "4"),
                *("--rollout.n_samples_per_prompt", str(GROUP_SIZE), "--rollout.micro_batch_size", "4"),
                *(
                    "--train.batch_size",
                    "8",
                    "--train.micro_batch_size",
                    "4",
                    "--actor.eps_clip_low_high",
                    "0.2",
                    "0.3",
                ),
                *("--vllm.num_engines", "1", "--actor.num_gpus_per_node", "1", "--vllm.enforce_eager"),
                *("--rollout.max_tokens_per_gpu", "500", "--train.max_tokens_per_gpu", "500"),
                *("--ckpt.output_dir", str(folder / "checkpoint"), "--actor.lr_scheduler", "constant"),
                *words,
            ]
        )
        return hierarchize(flat)

    return build


@pytest.fixture(scope="session")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(POLICY)


@pytest.fixture
def rollouts(tokenizer):
    """A function: number of groups -> fresh rollouts as OpenRLHF's generator makes them; every group is mixed.

    The last rollout of each group has two turns, with environment tokens between them.
    """
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    from openrlhf_shear.arithmetic.problems import make_problems
    from openrlhf_shear.arithmetic.solutions import write_solution

    def one(problem, right: bool, two_turns: bool, rng):
        prompt = tokenizer(problem.prompt, add_special_tokens=False)["input_ids"]
        text = write_solution(problem, rng)
        if not right:
            text = text[: len(text) // 2] + write_solution(make_problems(1, seed=rng.randrange(10**6))[0], rng)
        response = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        tokens = prompt + response
        ranges = [(len(prompt), len(tokens))]
        if two_turns:
            middle = len(prompt) + len(response) // 2
            ranges = [(len(prompt), middle), (middle + 6, len(tokens))]
        reward = 1.0 if right else 0.0
        answer = {"prompt": problem.prompt, "label": problem.answer, "observation_tokens": tokens}
        answer |= {"action_ranges": ranges, "rollout_log_probs": None, "reward": reward, "scores": reward}
        return SamplesGenerator._process_response_into_experience(None, answer, max_len=256)

    def build(groups: int):
        rng = random.Random(7)
        return [
            one(problem, right=i % 2 == 0, two_turns=i == GROUP_SIZE - 1, rng=rng)
            for problem in make_problems(groups, seed=11)
            for i in range(GROUP_SIZE)
        ]

    return build


@pytest.fixture(scope="module")
def actor_group(cluster):
    """A function: arguments, engines -> an actor group with its model loaded; all are stopped after the module."""
    groups = []

    def build(args, engines=None):
        from openrlhf.trainer.ray import launcher, ppo_actor
        from openrlhf.utils import get_strategy

        strategy = get_strategy(args)
        group = launcher.RayActorGroup(
            args.actor.num_nodes, args.actor.num_gpus_per_node, ppo_actor.PolicyModelActor, num_gpus_per_actor=0.2
        )
        groups.append(group)
        cluster.get(group.async_init_model_from_pretrained(strategy, args.actor.model_name_or_path, 10, engines))
        return group, strategy

    yield build
    for group in groups:
        for actor in group._actor_handlers:
            cluster.kill(actor)


@pytest.fixture(scope="session")
def maker(tokenizer):
    """A function: actor group, strategy, upstream or the fork's class -> an experience maker without other models."""

    def build(group, strategy, upstream: bool = False, **options):
        from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
        from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController

        from openrlhf_shear.fork.experience_maker import CreditExperienceMaker

        kind = RemoteExperienceMaker if upstream else CreditExperienceMaker
        return kind(group, None, None, None, FixedKLController(0.0), strategy, tokenizer, **options)

    return build


@pytest.fixture
def train(tmp_path, policy):
    """A function: extra words -> two steps of 8 prompts x 4 rollouts on one rank; the log and TensorBoard's scalars.

    With `again`, in the folders of the run before.
    """

    def run(*words, problems: int = 16, again: bool = False) -> tuple[str, dict[str, list[float]]]:
        from openrlhf_shear.arithmetic.problems import write_dataset

        write_dataset(tmp_path / "train.jsonl", problems, seed=0)
        command = [
            *(sys.executable, "-m", "openrlhf_shear.cli.train_ppo_ray", "--device", "cpu"),
            *("--algo.advantage.estimator", "shear", "--shear.window", "16", "--shear.stride", "4"),
            *("--actor.model_name_or_path", policy, "--algo.kl.init_coef", "0", "--vllm.enforce_eager"),
            *("--data.prompt_dataset", tmp_path / "train.jsonl", "--data.input_key", "prompt"),
            *("--data.label_key", "answer", "--data.max_len", "256", "--train.colocate_all"),
            *("--actor.num_gpus_per_node", "1", "--vllm.num_engines", "1", "--vllm.enable_sleep", "--ds.enable_sleep"),
            *("--rollout.batch_size", "8", "--rollout.n_samples_per_prompt", "4", "--rollout.micro_batch_size", "8"),
            *("--train.batch_size", "16", "--train.micro_batch_size", "8", "--actor.adam.lr", "1e-4"),
            *("--ckpt.output_dir", tmp_path / "checkpoint", "--ckpt.path", tmp_path / "ckpt"),
            *("--logger.tensorboard_dir", tmp_path / f"tensorboard{again:d}", "--logger.wandb.run_name", "job"),
            *words,
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment["RAY_ADDRESS"] = "local"  # not whatever cluster there is on this machine
        job = subprocess.run(
            [str(word) for word in command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=540
        )
        log = job.stdout + job.stderr
        assert job.returncode == 0, log[-6000:]
        (events,) = (tmp_path / f"tensorboard{again:d}").rglob("events.out.tfevents.*")
        scalars = EventAccumulator(str(events), size_guidance={"scalars": 0}).Reload()
        return log, {tag: [event.value for event in scalars.Scalars(tag)] for tag in scalars.Tags()["scalars"]}

    return run


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in Path(item.path).parents:
            item.add_marker(pytest.mark.distributed)
            item.add_marker(pytest.mark.skipif(sys.platform != "linux", reason="vLLM's CPU build is for Linux"))
