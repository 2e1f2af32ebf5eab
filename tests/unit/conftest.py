"""Shared by several tests: a small complete command line, a process reward model, a jail, a browser; time limits."""

import json
import os
import shutil
from functools import cache
from pathlib import Path

import browsing
import pytest
from command_lines import write_tokenizer
from hypothesis import settings

from openrlhf_shear.cli import train_ppo_ray
from openrlhf_shear.preflight import models, rewards
from openrlhf_shear.rewards.verdict import Verdict, of_numbers
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR

# No test takes a minute: this limit only ends tests that hang. Set the patience on slower machines.
LIMIT_SECONDS = 600 * float(os.environ.get("OPENRLHF_SHEAR_TEST_PATIENCE", "1"))

settings.register_profile("ours", deadline=None, derandomize=True)  # no limit by the clock; the same cases each time
settings.load_profile("ours")

# They start first: a core that has nothing left to do would wait for them at the end.
LONGEST = (
    "test_gradients.py",
    "test_triton.py",
    "test_check_rewards.py",
    "test_light_core.py",
    "test_resumed_updates.py",
    "test_refused_files.py",
)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in LONGEST)
    for item in items:
        if Path(__file__).parent in Path(item.path).parents:
            item.add_marker(pytest.mark.timeout(LIMIT_SECONDS))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Keep torch on one thread, in started processes too: the work is small, and threads would wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", autouse=True)
def no_ray():
    """Make every start of Ray fail, in started processes too: Ray first makes this folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", "/dev/null/unit-tests-start-no-ray")
        yield


LINE = {
    **{"algo.advantage.estimator": "shear", "actor.model_name_or_path": "model", "reward.remote_url": "reward.py"},
    **{"rollout.n_samples_per_prompt": "4", "rollout.batch_size": "32", "actor.num_gpus_per_node": "2"},
    **{"vllm.num_engines": "1", "data.prompt_dataset": "prompts.jsonl"},
    **{"data.input_key": "question", "data.label_key": "answer"},
}
REWARD = 'def reward_func(queries, prompts, labels): return {"rewards": queries[0] == f"{prompts[0]}{labels[0]}"}\n'
TRIED = [of_numbers(0.0, 0.0), of_numbers(1.0, 1.0)]  # the verdicts of a process
SHORT = {
    "AS": "--algo.advantage.estimator",
    "GRPO": "--algo.advantage.estimator group_norm",
    "RESHAPE": "--algo.advantage.estimator prm_reshape --prm.model_name_or_path",
    "PURE": "--algo.advantage.estimator pure --prm.model_name_or_path",
    "NO_CODE": "no:reward.remote_url --reward.model_name_or_path",
    "POLICY": str(POLICY_DIR),
    "SHARED": "--train.colocate_all --vllm.num_engines 2 --ref.num_gpus_per_node 2",
}


_parser = cache(train_ppo_ray.build_parser)  # a third of a second each time


@pytest.fixture
def job(request, tmp_path, monkeypatch):
    """A folder with a model, a reward function and prompts, and a function that returns a command which trains on them.

    The function appends the given words, expands those of `SHORT` and PRM (a process reward model), and leaves out a
    flag for each no:FLAG.
    """
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "2"}) + "\n")
    Path("empty.py").write_text("")
    Path("reward.py").write_text(REWARD)
    real = rewards.try_file

    def try_file(file: str, seconds: float, requests: list) -> list[Verdict]:
        """Answer for REWARD without a process, whose start takes a third of a second."""
        source = Path(file).read_bytes() if Path(file).is_file() else None
        return TRIED if source == REWARD.encode() else real(file, seconds, requests)

    monkeypatch.setattr(rewards, "try_file", try_file)
    monkeypatch.setattr(train_ppo_ray, "build_parser", _parser)
    monkeypatch.setattr(models, "broken", lambda *_: ())  # these folders have no weights (preflight/test_weights.py)
    for name in ("model", "other"):
        Path(name).mkdir()
        Path(name, "config.json").write_text("{}")
    write_tokenizer(Path("model"))
    Path("other", "tokenizer.json").write_text("{}")
    shutil.copytree("model", "coded")
    Path("coded", "config.json").write_text('{"auto_map": {"AutoModel": "modeling.Model"}}')
    shutil.copytree("model", "spoken")
    for name, config in (("tied", '{"tie_word_embeddings": true}'), ("seeing", '{"vision_config": {}}')):
        shutil.copytree("model", name)
        Path(name, "config.json").write_text(config)
    Path("adapters").mkdir()
    Path("adapters", "adapter_config.json").write_text("{}")
    Path("spoken", "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["tokenization.Spoken", null]}}')

    def build(changes: str = "", line: dict[str, str] | None = None) -> list[str]:
        prm = {"PRM": str(request.getfixturevalue("prm"))} if "PRM" in changes else {}
        words = [part for word in changes.split() for part in (SHORT | prm).get(word, word).split()]
        kept = [(f"--{flag}", value) for flag, value in (line or LINE).items() if f"no:{flag}" not in words]
        return [word for pair in kept for word in pair] + [word for word in words if not word.startswith("no:")]

    return build


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A user's rules, right and wrong, in modules that can be imported."""
    (tmp_path / "my_rules.py").write_text(
        "from openrlhf_shear.credit import Credit, CreditRule, UpdateRule\n"
        "class Good(CreditRule):\n    name = 'good'\n    def credit(self, group): return Credit([])\n"
        "class Reader(Good):\n    needs = frozenset({'prm_scores'})\n"
        "class Maker(Good):\n    makes_advantages = True\n"
        "class Later(UpdateRule):\n    def advantages(self, advantages, entropies, mask): return advantages, {}\n"
        "class Needy(Good):\n    needs = frozenset({'the moon'})\n"
        "class Wordy(Good):\n    needs = 'log_probs'\n"
        "class Abstract(CreditRule): pass\n"
        "class Arguments(Good):\n    def __init__(self, scale): pass\n"
        "def function(group): pass\n"
    )
    (tmp_path / "broken_rules.py").write_text("import nothing_of_this_name")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture(scope="session")
def prm(tmp_path_factory):
    """The folder of a small process reward model with random weights."""
    from openrlhf_shear.tasks.arithmetic.prm import write_prm

    return write_prm(tmp_path_factory.mktemp("prm") / "prm")


@pytest.fixture(scope="session")
def policy():
    """The lab's shipped policy; `rollouts` of its task are written by hand, `reading` is its forward pass over them."""
    from lab_cases import SETTINGS

    from openrlhf_shear.lab.policy import Policy

    return Policy(POLICY_DIR, SETTINGS)


@pytest.fixture(scope="session")
def rollouts(policy):
    from lab_cases import known_rollouts

    return known_rollouts(policy)


@pytest.fixture(scope="session")
def reading(policy, rollouts):
    import torch

    with torch.no_grad():
        return policy.read(rollouts.sequences, rollouts.mask, states=True)


@pytest.fixture(scope="session")
def needs_jail():
    """Skip tests on machines without the programs of a jail; fail them where a jail is broken."""
    from openrlhf_shear.rewards.jail import find_jail

    if missing := [name for name in ("bwrap", "prlimit") if shutil.which(name) is None]:
        pytest.skip(f"no jail: {' and '.join(missing)} not installed")
    find_jail()


@pytest.fixture
def no_bubblewrap(monkeypatch):
    """A machine without bubblewrap, for `find_jail`, which looks again during and after the test."""
    from openrlhf_shear.rewards.jail import bubblewrap

    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "bwrap" else which(name))
    bubblewrap.probed.cache_clear()
    yield
    bubblewrap.probed.cache_clear()


@pytest.fixture(scope="session")
def browser():
    if not (browsing.BROWSER and browsing.DRIVER):
        pytest.skip(browsing.MISSING)
    pytest.importorskip("selenium.webdriver")
    driver = browsing.start()
    yield driver
    driver.quit()


@pytest.fixture
def short_back_off(monkeypatch):
    """Tries of a reward server follow each other at once."""
    for name in ("BACK_OFF", "RESTART", "POLL"):
        monkeypatch.setattr(f"openrlhf_shear.rewards.client.{name}_SECONDS", 0.001)
