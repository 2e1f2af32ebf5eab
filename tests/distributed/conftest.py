"""Real Ray, real DeepSpeed actors, real vLLM engines, on logical GPUs; the built-in policy and real rollouts' texts.

One Ray cluster and one actor group serve the whole folder. Other groups, and engines, live as long as the test module
that asked for them. No process outlives pytest, however it ends (keeper.py).
"""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import openrlhf_shear.tasks.arithmetic

from .processes import JOB_SECONDS, ROOT, Jobs, ray_head, wait_until

POLICY = Path(openrlhf_shear.tasks.arithmetic.__file__).parent / "shipped_policy"
ARITHMETIC_REWARD = POLICY.parent / "arithmetic.py"
GROUP_SIZE = 4
COMMON = (  # flags of every training here
    *("--device", "cpu", "--algo.advantage.estimator", "shear", "--shear.window", "16", "--shear.stride", "4"),
    *("--actor.model_name_or_path", str(POLICY), "--algo.kl.init_coef", "0", "--vllm.enforce_eager", "--verbose"),
    *("--data.input_key", "prompt", "--data.label_key", "answer", "--data.max_len", "256"),
    *("--actor.num_gpus_per_node", "1", "--vllm.num_engines", "1", "--rollout.n_samples_per_prompt", str(GROUP_SIZE)),
)
JOBS = pytest.StashKey[Jobs]()
DRIVER = "import ray, sys; ray.init(sys.argv[1])"
JOB = """\
#!/usr/bin/env bash
set -euo pipefail
python -c '
import ray
ray.init(log_to_driver=False)
print("nodes", len(ray.nodes()), "GPUs", ray.cluster_resources()["GPU"])'
echo "DATA $DATA GPUS ${GPUS-} words $*"
exit "$1"
"""


LONGEST = ("faults", "whole_run", "job_submit", "rules", "parallel", "recipes", "async", "evaluation", "vision")


def pytest_collection_modifyitems(items):
    # Long files first: no core waits for them at the end.
    items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in LONGEST)
    for item in items:
        if Path(__file__).parent in Path(item.path).parents:
            item.add_marker(pytest.mark.distributed)
            item.add_marker(pytest.mark.timeout(2 * JOB_SECONDS))
            item.add_marker(pytest.mark.skipif(sys.platform != "linux", reason="vLLM's CPU build is for Linux"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Add the ends of the commands' logs to the report of a failed test."""
    report = yield
    if report.failed and JOBS in item.stash:
        report.sections += item.stash[JOBS].tails()
    return report


@pytest.fixture
def jobs(request, tmp_path_factory):
    """The commands of this test; those that still run at its end are stopped."""
    request.node.stash[JOBS] = jobs = Jobs(tmp_path_factory.mktemp("jobs"))
    yield jobs
    jobs.stop()


@pytest.fixture
def project(tmp_path) -> Path:
    """A checkout with the launch scripts and JOB as job.sh, small enough to upload quickly."""
    shutil.copytree(ROOT / "examples" / "scripts", tmp_path / "project" / "examples" / "scripts")
    job = tmp_path / "project" / "job.sh"
    job.write_text(JOB)
    job.chmod(0o755)
    return job.parent


@pytest.fixture(scope="session")
def policy() -> Path:
    """The Hugging Face folder of the built-in policy."""
    return POLICY


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A Ray cluster for these tests, with the CPU backend in every worker."""
    import ray

    from openrlhf_shear.rewards.pool import RewardSettings
    from openrlhf_shear.train.cpu import backend as cpu_backend
    from openrlhf_shear.train.start import launch

    cpu_backend.install()
    environment = dict(cpu_backend.ENVIRONMENT, OMP_NUM_THREADS="1")
    runtime_env = {"worker_process_setup_hook": cpu_backend.WORKER_SETUP_HOOK, "env_vars": environment}

    # Logical GPUs and CPUs: the placement groups of a module are still there in the next module.
    words = ("--num-gpus", 64, "--num-cpus", 80, "--include-dashboard", "false")
    with ray_head(tmp_path_factory.mktemp("cluster"), *words) as head:

        def connected() -> bool:
            # A driver exits silently where a slow machine's raylet does not answer: try it in another process first.
            if subprocess.run([sys.executable, "-c", DRIVER, head.address], capture_output=True).returncode:
                return False
            try:
                ray.init(head.address, runtime_env=runtime_env)
            except (OSError, RuntimeError, ValueError):
                return False  # the head is still starting: ray raises any of these
            return True

        try:
            wait_until(connected, "the cluster answers")
            launch.install_hooks(cpu_backend.MIXINS, RewardSettings(str(ARITHMETIC_REWARD)))
            yield ray
        finally:
            ray.shutdown()


@pytest.fixture(scope="session")
def arguments(tmp_path_factory):
    """A function: extra command-line words -> OpenRLHF's nested namespace, through the fork's real command line."""
    from openrlhf_shear.cli.train_ppo_ray import parse
    from openrlhf_shear.tasks.arithmetic.problems import write_dataset

    folder = tmp_path_factory.mktemp("arguments")
    write_dataset(folder / "train.jsonl", 64, seed=0)

    def build(*words: str):
        from openrlhf.utils.config import hierarchize

        flat = parse(
            [
                *COMMON,
                *("--reward.remote_url", str(ARITHMETIC_REWARD), "--actor.lr_scheduler", "constant"),
                *("--data.prompt_dataset", str(folder / "train.jsonl"), "--rollout.batch_size", "4"),
                *("--rollout.micro_batch_size", "4", "--train.batch_size", "8", "--train.micro_batch_size", "4"),
                *("--actor.eps_clip_low_high", "0.2", "0.3", "--ckpt.output_dir", str(folder / "checkpoint")),
                *("--rollout.max_tokens_per_gpu", "500", "--train.max_tokens_per_gpu", "500", *words),
            ]
        )
        return hierarchize(flat)

    return build


@pytest.fixture(scope="session")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(POLICY)


@pytest.fixture(scope="session")
def rollouts(tokenizer):
    """A function: number of groups -> fresh rollouts as OpenRLHF's generator makes them; every group is mixed.

    The last rollout of each group has two turns, with environment tokens between them.
    """
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    from openrlhf_shear.tasks.arithmetic.problems import make_problems
    from openrlhf_shear.tasks.arithmetic.solutions import write_solution

    def made(problem, right: bool, two_turns: bool, rng):
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
            made(problem, right=i % 2 == 0, two_turns=i == GROUP_SIZE - 1, rng=rng)
            for problem in make_problems(groups, seed=11)
            for i in range(GROUP_SIZE)
        ]

    return build


def build_engines(args, count: int, **more) -> list:
    from openrlhf.trainer.ray import create_vllm_engines

    how = {"seed": 0, "full_determinism": False, "enforce_eager": True, "max_model_len": 256}
    return create_vllm_engines(count, 1, args.actor.model_name_or_path, gpu_memory_utilization=0.5, **how, **more)


def build_group(args, engines=None):
    """An actor group with its model loaded, and its strategy."""
    import ray
    from openrlhf.trainer.ray import launcher, ppo_actor
    from openrlhf.utils import get_strategy

    strategy = get_strategy(args)
    group = launcher.RayActorGroup(
        args.actor.num_nodes,
        args.actor.num_gpus_per_node,
        ppo_actor.PolicyModelActor,
        num_gpus_per_actor=0.2,
        duplicate_actors=args.ds.ring_attn_size * args.ds.tensor_parallel_size,
    )
    ray.get(group.async_init_model_from_pretrained(strategy, args.actor.model_name_or_path, 10, engines))
    return group, strategy


@pytest.fixture(scope="module")
def actor_group(cluster):
    """A function: arguments, engines -> an actor group with its model loaded; all are stopped after the module."""
    groups = []

    def build(args, engines=None):
        group, strategy = build_group(args, engines)
        groups.append(group)
        return group, strategy

    yield build
    for group in groups:
        group.stop()


@pytest.fixture(scope="session")
def plain(cluster, arguments):
    """One rank, ZeRO-2, padded fixed micro-batches: what everything is compared with. Its updates change nothing."""
    return build_group(arguments("--actor.adam.lr", "0", "--actor.entropy_coef", "0"))


@pytest.fixture(scope="session")
def maker(tokenizer):
    """A function: actor group, strategy, upstream or the fork's class -> an experience maker.

    It has no other models, except perhaps a reference model's group.
    """

    def build(group, strategy, upstream: bool = False, reference=None, **options):
        from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
        from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController

        from openrlhf_shear.credit.registry import load_rule
        from openrlhf_shear.train.experience.experience_maker import CreditExperienceMaker

        kind = RemoteExperienceMaker if upstream else CreditExperienceMaker
        if not upstream:
            options["rule"] = load_rule(strategy.args.credit)
        return kind(group, None, None, reference, FixedKLController(0.0), strategy, tokenizer, **options)

    return build


def credited_step(ours, samples):
    """A step with the fork's experience maker: what there is to write of it (`rollouts.columns.StepRollouts`)."""
    ours.shows = True
    ours.make_experience_batch(samples)
    return ours.shown


def weights_of(shown) -> dict:
    """Rollout index -> the weights of its response tokens, of what `credited_step` gave."""
    return {i: credit.weights for i, credit in shown.tokens.items()}


def advantages_by_rollout(experiences) -> dict:
    """Rollout index -> advantages at its response tokens; fillers are no rollouts."""
    rows = [(i, e.advantages[row][e.action_mask[row].bool()]) for e in experiences for row, i in enumerate(e.index)]
    return {i: advantages for i, advantages in rows if i >= 0}


def reaching_the_loss(group, experiences) -> tuple[list[list[list[float]]], list[dict[str, float]]]:
    """Of each actor, the advantages at response tokens that the policy loss is called with in one update, in no order;
    and the update's metrics."""
    import ray

    def fit(actor):
        seen = []

        def keep(loss, args, kwargs, output):
            seen.extend(row[mask].tolist() for row, mask in zip(args[2], kwargs["action_mask"].bool(), strict=True))

        handle = actor.trainer.actor_loss_fn.register_forward_hook(keep, with_kwargs=True)
        status = actor.fit(kl_ctl=0.0)
        handle.remove()
        return seen, status

    ray.get(group.async_run_method_batch(method_name="append", experience=experiences))
    seen, metrics = zip(*ray.get([actor.__ray_call__.remote(fit) for actor in group.actors]), strict=True)
    return list(seen), list(metrics)


@pytest.fixture
def train(tmp_path, jobs):
    """A function: extra words -> two steps of 8 prompts x 4 rollouts on one rank; the log and TensorBoard's scalars.

    With `again`, in the folders of the run before. `meanwhile` gets the started process and its log.
    """

    def run(
        *words,
        problems: int = 16,
        again: bool = False,
        folder: Path = tmp_path,
        meanwhile: Callable[[subprocess.Popen, Path], object] = lambda process, log: None,
    ) -> tuple[str, dict[str, list[float]]]:
        from openrlhf_shear.tasks.arithmetic.problems import write_dataset

        write_dataset(folder / "train.jsonl", problems, seed=0)
        process = jobs.start(
            *(sys.executable, "-m", "openrlhf_shear.cli.train_ppo_ray", *COMMON),
            *("--data.prompt_dataset", folder / "train.jsonl", "--train.colocate_all"),
            *(
                "--vllm.enable_sleep",
                "--ds.enable_sleep",
                "--rollout.batch_size",
                "8",
                "--rollout.micro_batch_size",
                "8",
            ),
            *("--train.batch_size", "16", "--train.micro_batch_size", "8", "--actor.adam.lr", "1e-4"),
            *("--ckpt.output_dir", folder / "checkpoint", "--ckpt.path", folder / "ckpt"),
            *("--logger.tensorboard_dir", folder / f"tensorboard{again:d}", "--logger.wandb.run_name", "job"),
            *words,
        )
        meanwhile(process, jobs.last_log)
        done = jobs.finish(process)
        assert done.code == 0
        return done.log, scalars_of(folder / f"tensorboard{again:d}")

    return run


def scalars_of(folder: Path) -> dict[str, list[float]]:
    """TensorBoard's scalars of the one run in a folder, which may have been resumed."""
    (run,) = {events.parent for events in folder.rglob("events.out.tfevents.*")}
    scalars = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    return {tag: [event.value for event in scalars.Scalars(tag)] for tag in scalars.Tags()["scalars"]}
