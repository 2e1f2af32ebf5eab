"""Everything the fork assumes about OpenRLHF: its version, its parser, the names it hooks, its main.

OpenRLHF builds its parser under `if __name__ == "__main__"` of a module whose first lines import ray, vllm and
deepspeed. `parser()` reads that module's source and runs only the statements that build the parser, so that `--help`
and every early error come within a second, and the flags of any 0.11.x release work without a copy of them.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import runpy
import sys
from importlib import metadata
from pathlib import Path

from openrlhf_shear.rewards.pool import RewardSettings

OPENRLHF_VERSION = "0.11.2"
_MODULE = "openrlhf.cli.train_ppo_ray"


def check_version() -> str:
    """The installed OpenRLHF version; any 0.11.x will do, another than `OPENRLHF_VERSION` with a warning.

    Raises:
        RuntimeError: OpenRLHF is not installed, or is not a 0.11 release.
    """
    remedy = f"use: pip install openrlhf=={OPENRLHF_VERSION}"
    try:
        found = metadata.version("openrlhf")
    except metadata.PackageNotFoundError:
        raise RuntimeError(f"OpenRLHF is not installed; {remedy}") from None
    if found.split(".")[:2] != OPENRLHF_VERSION.split(".")[:2]:
        raise RuntimeError(f"OpenRLHF must be a 0.11 release: got {found}; {remedy}")
    if found != OPENRLHF_VERSION:
        print(
            f"[Warning] openrlhf_shear is checked against OpenRLHF {OPENRLHF_VERSION}, not {found}; {remedy}",
            file=sys.stderr,
        )
    return found


def parser() -> argparse.ArgumentParser:
    """OpenRLHF's parser of `openrlhf.cli.train_ppo_ray`, as it stands before `parse_args()`.

    Raises:
        RuntimeError: OpenRLHF is missing, or its module no longer builds a `parser` the way 0.11 does.
    """
    source, origin = _source()
    tree = ast.parse(source, origin)
    body = [*_standard_imports(tree), *_parser_statements(tree)]
    namespace = {"__name__": "openrlhf_shear.fork.upstream.parser"}
    try:
        exec(compile(ast.Module(body, type_ignores=[]), origin, "exec"), namespace)
    except NameError as error:
        raise RuntimeError(_unexpected(f"its parser needs more than the standard library ({error})")) from error
    built = namespace.get("parser")
    if not isinstance(built, argparse.ArgumentParser):
        raise RuntimeError(_unexpected("it builds no `parser`"))
    return built


def _source() -> tuple[str, str]:
    try:
        # Imports the parent packages; their __init__ files are empty.
        spec = importlib.util.find_spec(_MODULE)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise RuntimeError(f"{_MODULE} is not installed; use: pip install openrlhf=={OPENRLHF_VERSION}")
    return Path(spec.origin).read_text(encoding="utf-8"), spec.origin


def _standard_imports(tree: ast.Module) -> list[ast.stmt]:
    def standard(name: str | None) -> bool:
        return (name or "").split(".")[0] in sys.stdlib_module_names

    return [
        node
        for node in tree.body
        if (isinstance(node, ast.Import) and all(standard(alias.name) for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.level == 0 and standard(node.module))
    ]


def _parser_statements(tree: ast.Module) -> list[ast.stmt]:
    for node in tree.body:
        if isinstance(node, ast.If) and _mentions(node.test, ast.Name, "id", "__name__"):
            for index, statement in enumerate(node.body):
                if _mentions(statement, ast.Attribute, "attr", "parse_args"):
                    return node.body[:index]
    raise RuntimeError(_unexpected('it has no `if __name__ == "__main__"` that calls `parser.parse_args()`'))


def _mentions(tree: ast.AST, kind: type, attribute: str, value: str) -> bool:
    return any(isinstance(node, kind) and getattr(node, attribute) == value for node in ast.walk(tree))


def _unexpected(problem: str) -> str:
    found = metadata.version("openrlhf")
    return (
        f"{_MODULE} of OpenRLHF {found} is not what openrlhf_shear knows: {problem}; "
        f"use: pip install openrlhf=={OPENRLHF_VERSION}"
    )


def plain_class(actor_class) -> type:
    """The class behind a `ray.remote` actor class, which Ray refuses to subclass."""
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__


def install_hooks(mixins: dict[str, type], reward: RewardSettings | None = None, asynchronous: bool = False) -> None:
    """Replace by name what OpenRLHF's main is about to import: actor classes, the actor group, the trainer.

    Args:
        mixins: per upstream class name a class to put in front of it, from the CPU backend; empty on CUDA.
        reward: of the pool that grades rollouts; None where rewards come over HTTP, from a model or from an agent.
        asynchronous: the trainer is upstream's asynchronous one, which knows no failed rewards: its engines stay as
            they are.
    """
    import openrlhf.trainer.ppo_trainer as ppo_trainer
    import openrlhf.trainer.ray.launcher as launcher
    import openrlhf.trainer.ray.ppo_actor as ppo_actor
    import openrlhf.trainer.ray.vllm_engine as vllm_engine
    import openrlhf.utils.deepspeed as deepspeed
    import ray

    from openrlhf_shear.fork.actor import ShearActorGroup, ShearPolicyActor
    from openrlhf_shear.fork.engine import RewardRolloutActor
    from openrlhf_shear.fork.strategy import ShearStrategy
    from openrlhf_shear.fork.trainer import ShearTrainer

    def mixed(name: str, base: type) -> type:
        return type(base.__name__, (mixins[name], base), {}) if name in mixins else base

    ppo_actor.PolicyModelActor = ray.remote(num_gpus=1)(mixed("PolicyModelActor", ShearPolicyActor))
    ppo_trainer.PPOTrainer = ray.remote(ShearTrainer)
    launcher.RayActorGroup = ShearActorGroup
    engine = plain_class(vllm_engine.RolloutRayActor)
    if not asynchronous:
        engine = type(engine.__name__, (RewardRolloutActor,), {"reward": reward})
    vllm_engine.RolloutRayActor = ray.remote(mixed("RolloutRayActor", engine))
    deepspeed.DeepspeedStrategy = mixed("DeepspeedStrategy", ShearStrategy)


def run_main(args: argparse.Namespace) -> None:
    """Run `openrlhf.cli.train_ppo_ray` as a program whose parser finds `args` already parsed.

    Its own validation, and everything after it, is upstream's. `argparse` is itself again once the arguments are out.
    """
    original = argparse.ArgumentParser

    class ParsedBefore:
        def __init__(self, *args, **kwargs):
            pass

        def add_argument(self, *args, **kwargs):
            pass

        def parse_args(self):
            argparse.ArgumentParser = original
            return args

    argparse.ArgumentParser = ParsedBefore
    try:
        runpy.run_module(_MODULE, run_name="__main__")
    finally:
        argparse.ArgumentParser = original
