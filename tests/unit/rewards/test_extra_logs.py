"""Names that a reward's `extra_logs` cannot take: all metrics of upstream and the fork."""

import ast
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import openrlhf_on_cpu  # noqa: F401
import pytest
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_shear.train import hooks
from openrlhf_shear.train.sampling.rollout_rewards import renamed

UPSTREAM = Path(find_spec("openrlhf").origin).parent / "trainer"
FILES = (
    *(UPSTREAM / "ray" / name for name in ("ppo_actor.py", "ppo_critic.py")),
    *(UPSTREAM / "ppo_utils" / name for name in ("experience_maker.py", "samples_generator.py", "length_penalty.py")),
    UPSTREAM / "ppo_trainer.py",
    *sorted(Path(hooks.__file__).parent.rglob("*.py")),
)
HOLDERS = {"info", "metrics", "status", "stats", "merged_status", "status_mean", "reduced_status", "logs_dict"}


def metric_names(tree: ast.Module) -> set[str]:
    """Literal names of metrics: X["name"] = ..., X = {"name": ...}, X |= {...}, meter.add("name", ...)."""
    names = set()

    def holds(node: ast.expr) -> bool:
        return (getattr(node, "attr", None) or getattr(node, "id", None)) in HOLDERS

    def keys(node: ast.expr | None) -> set[str]:
        literal = node.keys if isinstance(node, ast.Dict) else ()
        return {key.value for key in literal if isinstance(key, ast.Constant) and isinstance(key.value, str)}

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("meter.add", "meter.add_loss")):
            names |= {node.args[0].value} if isinstance(node.args[0], ast.Constant) else set()
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            continue
        for target in targets:
            if isinstance(target, ast.Subscript) and holds(target.value) and isinstance(target.slice, ast.Constant):
                names.add(target.slice.value)
            elif holds(target):
                names |= keys(node.value)
    return {name for name in names if isinstance(name, str)}


def test_every_metric_of_training_is_kept_apart():
    found = {name for file in FILES for name in metric_names(ast.parse(file.read_text(encoding="utf-8")))}
    found |= {field.name for field in fields(Experience) if Experience.is_episode_tensor_field(field.name)}
    assert {"kl", "reward", "policy_loss", "rollout/reward_mean", "critic_lr", "values"} <= found
    assert not [name for name in found if renamed(name) == name]


@pytest.mark.parametrize(
    "name", ["turns", "mine/turns", "format", "reward_seconds", "reward_no_answer", "a/b/c", "tool/kl", "mixed_groups"]
)
def test_other_names_are_logged_as_they_are(name):
    assert renamed(name) == name


@pytest.mark.parametrize(
    ("name", "told"), [("kl", "extra_kl"), ("shear/omega", "extra_shear_omega"), ("ledger/x", "extra_ledger_x")]
)
def test_a_name_that_is_taken_gets_another(name, told):
    assert renamed(name) == told and renamed(told) == told
