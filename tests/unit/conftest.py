"""What several tests share: a small complete command line, a process reward model, a jail, a browser; and limits."""

import json
import os
from pathlib import Path

import browsing
import pytest

# No test takes a minute; a test that hangs is ended, on a slow machine later.
LIMIT_SECONDS = 600 * float(os.environ.get("OPENRLHF_SHEAR_TEST_PATIENCE", "1"))


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in Path(item.path).parents:
            item.add_marker(pytest.mark.timeout(LIMIT_SECONDS))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Of torch, in the tests' processes too: what is computed here is small, and threads only wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", autouse=True)
def no_ray():
    """Whatever starts Ray here fails, in a process of its own as well: it makes this folder first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", "/dev/null/unit-tests-start-no-ray")
        yield


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A folder with a model, a reward function and prompts, and a line that trains on them; flags replace others."""
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "2"}) + "\n")
    Path("empty.py").write_text("")
    Path("reward.py").write_text("def reward_func(queries, prompts, labels): ...\n")
    for name in ("model", "other"):
        Path(name).mkdir()
        Path(name, "config.json").write_text("{}")
    line = {
        "algo.advantage.estimator": "shear",
        "rollout.n_samples_per_prompt": "4",
        "rollout.batch_size": "32",
        "actor.num_gpus_per_node": "2",
        "vllm.num_engines": "1",
        "actor.model_name_or_path": "model",
        "reward.remote_url": "reward.py",
        "data.prompt_dataset": "prompts.jsonl",
        "data.input_key": "question",
        "data.label_key": "answer",
    }

    def build(changes: str = "", without: str = "") -> list[str]:
        words = changes.split()
        kept = {flag: value for flag, value in line.items() if flag not in without.split()}
        return [word for flag, value in kept.items() for word in (f"--{flag}", value)] + words

    return build


@pytest.fixture(scope="session")
def prm(tmp_path_factory):
    """The folder of a small process reward model with random weights."""
    from openrlhf_shear.arithmetic.prm import write_prm

    return write_prm(tmp_path_factory.mktemp("prm") / "prm")


@pytest.fixture(scope="session")
def policy():
    """The lab's, as shipped; `rollouts` are of its task, by hand, and `reading` is what it makes of them."""
    from lab_cases import SETTINGS

    from openrlhf_shear.arithmetic.problems import POLICY_DIR
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
    """Skips where no jail works."""
    from openrlhf_shear.rewards.jail import JailError, find_jail

    try:
        find_jail()
    except JailError as error:
        pytest.skip(f"no jail: {error}")


@pytest.fixture(scope="session")
def browser():
    if not (browsing.BROWSER and browsing.DRIVER):
        pytest.skip(browsing.MISSING)
    pytest.importorskip("selenium.webdriver")
    driver = browsing.start()
    yield driver
    driver.quit()
