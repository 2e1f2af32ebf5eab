"""What the fork relies on upstream is as its contract says, and all of it is there; what changes is named."""

import ast
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import contract
import pytest
import upstream_uses

from openrlhf_shear.config.syntax import canonical
from openrlhf_shear.train import hooks

RENEW = (
    "\nread what has changed and adapt the fork to it, then write the contract anew: python tests/unit/upstream_uses.py"
)
ACTOR, EXPERIENCE = "openrlhf.trainer.ray.ppo_actor", "openrlhf.trainer.ppo_utils.experience"
TRAINER = "openrlhf.trainer.ppo_trainer"
FORWARD = f"{ACTOR}:PolicyModelActor.forward"


def test_upstream_is_what_the_fork_knows():
    lines = contract.changes(contract.read())
    assert not lines, "\n".join(["upstream has changed:", *lines]) + RENEW


def test_every_use_of_upstream_is_in_the_contract():
    held = {name: term.use for name, term in contract.read().items()}
    seen = upstream_uses.uses()
    assert seen == held, f"these differ: {sorted(set(seen.items()) ^ set(held.items()))}" + RENEW


@pytest.fixture
def copied(tmp_path) -> Path:
    """A copy of OpenRLHF's source that may be doctored."""
    source = contract.Sources().folder("openrlhf")
    return Path(shutil.copytree(source, tmp_path / "openrlhf", ignore=shutil.ignore_patterns("__pycache__")))


def doctored(folder: Path, module: str, old: str, new: str, terms: dict | None = None) -> list[str]:
    """What is said of a copy in whose module the first `old` became `new`."""
    file = folder.parent.joinpath(*module.split(".")).with_suffix(".py")
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    terms = terms or {name: term for name, term in contract.read().items() if name.startswith("openrlhf.")}
    return contract.changes(terms, {"openrlhf": folder})


OVERRIDE = "class PPOTrainer(BasePPOTrainer):\n    def train_step(self, rollout_samples, global_step):\n        pass\n"
PACKED = ("        packed_seq_lens=None,\n        mm_train", "        packed_seq_lens: list = (),\n        mm_train")


@pytest.mark.parametrize(
    ("module", "old", "new", "said"),
    [
        (ACTOR, *PACKED, f"{FORWARD}: (self, sequences, action_mask=None, attention_mask=None, packed_seq_lens=None, "),
        (ACTOR, "self.actor.eval()", "self.actor.train()", f"{FORWARD}: source changed"),
        (ACTOR, "    def fit(", "    def train(", f"{ACTOR}:PolicyModelActor.fit is gone"),
        (EXPERIENCE, "    rewards: ", "    grades: ", f"{EXPERIENCE}:Experience: @dataclass class () with sequences"),
    ],
)
def test_changes_are_named(copied, module, old, new, said):
    (line,) = doctored(copied, module, old, new)
    assert said in line


def test_an_override_is_named_although_the_base_class_has_what_it_had(copied):
    name = f"{TRAINER}:PPOTrainer.train_step"
    terms = {name: contract.Sources().term(name)}
    (line,) = doctored(copied, TRAINER, "class PPOTrainer(BasePPOTrainer):", OVERRIDE, terms)
    assert line.startswith(f"{name}: source changed")


def test_comments_docstrings_annotations_and_line_breaks_do_not_count(copied):
    assert doctored(copied, ACTOR, '"""Generates actor values."""', "# as before") == []
    assert doctored(copied, ACTOR, "sequences: torch.LongTensor,", "sequences,") == []
    assert doctored(copied, ACTOR, "sequences.to(device),", "sequences.to(\n    device\n),") == []


def test_f_strings_are_the_same_under_every_python():
    """Python 3.12.1 has an empty text after the last value of a format."""
    tree = ast.parse('f"{x:{width}}"')
    (spec,) = (node.format_spec for node in ast.walk(tree) if isinstance(node, ast.FormattedValue) and node.format_spec)
    before = canonical(tree)
    spec.values.append(ast.Constant(""))
    assert canonical(tree) == before
    spec.values.append(ast.Constant("s"))
    assert canonical(tree) != before


def test_a_new_override_or_call_is_found(tmp_path):
    folder = Path(shutil.copytree(upstream_uses.TRAIN, tmp_path / "train"))
    file = folder / "update/strategy.py"
    added = "    def load_model(self, *args):\n        self.all_gather(1)\n\n    def prepare("
    file.write_text(file.read_text().replace("    def prepare(", added))
    new = set(upstream_uses.uses(folder)) - set(contract.read())
    assert new == {f"openrlhf.utils.deepspeed:DeepspeedStrategy.{name}" for name in ("load_model", "all_gather")}


def test_every_replaced_name_is_there():
    sources = contract.Sources()
    for patch in hooks.patches():
        if contract.package(patch.place) in ("openrlhf", "deepspeed") and "[" not in patch.place:
            owner, _, _ = patch.place.partition("().")  # of an attribute of objects, their class
            module, _, name = owner.partition(":")
            top, *inner = module.split(".")
            known = sources.definition(owner) is not None
            file = sources.folder(top).joinpath(*inner).with_suffix(".py")
            assert known or f" import {name}\n" in file.read_text(), patch.place


def test_a_patch_puts_holds_and_refuses(monkeypatch):
    module = type(sys)("patched_module")
    module.Class, module.entries = type("Class", (), {"method": 1}), {}
    monkeypatch.setitem(sys.modules, "patched_module", module)
    method = hooks.Patch("patched_module:Class.method", "ours", "why")
    with pytest.raises(KeyError), method.held(2) as before:
        assert (before, module.Class.method) == (1, 2)
        raise KeyError
    assert module.Class.method == 1
    method.put(3)
    assert module.Class.method == method.get() == 3
    hooks.Patch("patched_module:entries[key]", "ours", "why", optional=True).put(4)
    assert module.entries == {"key": 4}
    for place in ("patched_module:Class.other", "patched_module:entries[other]"):
        with pytest.raises(RuntimeError, match=r"there is no patched_module.* to replace by ours"):
            hooks.Patch(place, "ours", "why").put(5)


def patched(source: str) -> list[str]:
    """What a file sets of other packages: module.name = ..., setattr(module, ...), module.mapping[...] = ..."""
    tree = ast.parse(source)
    foreign = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("openrlhf_shear"))
        for alias in node.names
    }

    def of_others(target: ast.expr) -> bool:
        root = target
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        return isinstance(root, ast.Name) and root.id in foreign and root is not target

    targets: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            several = node.targets if isinstance(node, ast.Assign) else [node.target]
            targets += [inner for target in several for inner in getattr(target, "elts", [target])]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setattr":
            targets.append(ast.Attribute(node.args[0], "..."))
    return [ast.unparse(target) for target in targets if of_others(target)]


def test_only_the_hooks_replace_names_of_others():
    package = upstream_uses.TRAIN.parent
    files = [path for path in package.rglob("*.py") if path.name != "hooks.py" and path.parent.name != "inside"]
    # Python's, to be set by anybody; and verl's choice of a loss, of which it passes no other sign to its worker.
    offered = {"sys.excepthook", "os.environ['NUMBA_NUM_THREADS']", "sys.modules[spec.name]"}
    offered |= {"losses.get_policy_loss_fn"}
    assert {path.name: names for path in files if (names := set(patched(path.read_text())) - offered)} == {}
    assert patched("import torch\ntorch.cuda.sync, own = 1, 2") == ["torch.cuda.sync"]
    assert (
        patched("def f():\n    from deepspeed.comm.torch import TorchBackend\n    setattr(TorchBackend, 'a', 1)") != []
    )
    assert patched("import sys\nsys.modules['flash_attn'] = own\nown.name = 1") == ["sys.modules['flash_attn']"]


SETTINGS = {  # where our code sets an attribute of an object of upstream
    "openrlhf.trainer.ray.vllm_engine:RolloutRayActor().llm": ("sampling/engine", "self.llm = Watched(self.llm)"),
    "openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer().training_step": ("update/update", "_trainer.training_step = "),
    "openrlhf.trainer.ray.ppo_critic:CriticPPOTrainer().training_step": ("update/update", "_trainer.training_step = "),
    "deepspeed.runtime.engine:DeepSpeedEngine().checkpoint_engine": (
        "checkpoints/saveable",
        "engine.checkpoint_engine = _Noting(writer, problems)",
    ),
    "peft:PeftModel().named_parameters": ("update/lora", "model.named_parameters = "),
}


def test_what_is_set_on_objects_is_listed():
    assert {patch.place for patch in hooks.ON_OBJECTS} == SETTINGS.keys()
    for place, (file, setting) in SETTINGS.items():
        assert setting in (upstream_uses.TRAIN / f"{file}.py").read_text(), place
        owner, _, name = place.partition("().")
        module, _, kind = owner.partition(":")
        source = Path(find_spec(module).origin).read_text()
        assert module == "peft" or (name in source and f"class {kind}" in source), place
