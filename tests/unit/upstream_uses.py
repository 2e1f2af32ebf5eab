"""Find every upstream function that we override, replace or call, by parsing our files and the installed ones.

For the fork these are functions of OpenRLHF, DeepSpeed, vLLM and Ray, for the integrations of TRL and verl.

    python tests/unit/upstream_uses.py

writes anew the files of tests/data/contract, each in an environment that has its packages. Do it after reading what has
changed there, and what that means here.
"""

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import contract
from contract import package

from openrlhf_shear.train import hooks

TRAIN = Path(hooks.__file__).parent
INTEGRATIONS = TRAIN.parent / "integrations"
PACKAGES = ("openrlhf", "deepspeed", "vllm", "ray")
OTHERS = ("trl", "verl")  # of one integration each, whose file is called as the package
OURS = "openrlhf_shear."
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
# Uses that parsing misses: methods of objects, upstream's callers of replaced functions, modules with our hooks.
ALSO = {
    "deepspeed.runtime.zero.partition_parameters:GatheredParameters.__init__": "called by lora.merged in its own place",
    "openrlhf.cli.train_ppo_ray:train": "imports and calls by name what hooks.py replaces",
    "openrlhf.models.actor:Actor.forward": "credit/captured.py asks it for entropies, credit/apply.py reads them",
    "openrlhf.models.loss:PolicyLoss.forward": "credit/apply.py changes its third argument",
    "openrlhf.models.ring_attn_utils:gather_and_pad_tensor": "calls flash_attn_stand_in",
    "openrlhf.models.ring_attn_utils:unpad_and_slice_tensor": "calls flash_attn_stand_in",
    "openrlhf.models.ring_attn_utils:update_ring_attn_params": "calls flash_attn_stand_in",
    "openrlhf.trainer.ppo_utils.experience:Experience": "its fields are read, and built anew by experience_maker",
    "openrlhf.trainer.ppo_trainer:BasePPOTrainer.save_best_checkpoint": "done by saving.what_to_save and Best",
    "openrlhf.trainer.ppo_trainer:BasePPOTrainer.save_logs_and_checkpoints": "done by trainer, tracking and saving",
    "openrlhf.trainer.ppo_trainer:BasePPOTrainer.train_step": "called by trainer, on a Learner",
    "openrlhf.trainer.ppo_trainer:PPOTrainer.__init__": "done by trainer_actor, in its place",
    "openrlhf.trainer.ppo_trainer:PPOTrainer.evaluate": "done by evaluation",
    "openrlhf.trainer.ppo_trainer:PPOTrainer.fit": "done by trainer",
    "openrlhf.trainer.ppo_trainer:PPOTrainer.get_max_steps": "done by trainer_actor",
    "openrlhf.trainer.ppo_trainer:prepare_datasets": "done by prompt_data",
    "openrlhf.trainer.ray.launcher:BaseModelActor.execute_batch": "passes credit requests on to forward",
    "openrlhf.trainer.ray.launcher:RayActorGroup.async_init_model_from_pretrained": "called by diagnosis and prm",
    "openrlhf.trainer.ray.launcher:RayActorGroup.async_run_method": "called by learner, prm and saving",
    "openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer.broadcast_to_vllm": "reads weights as lora.merged has them",
    "openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer.ppo_train": "calls training_step, which actor counts",
    "openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer.training_step": "counted by actor; calls Actor and PolicyLoss",
    "openrlhf.trainer.ray.vllm_engine:RolloutRayActor.generate_responses": "calls the executor that engine replaces",
    "openrlhf.trainer.ray.vllm_engine:RolloutRayActor.pause_generation": "called by engines",
    "openrlhf.trainer.ray.vllm_engine:RolloutRayActor.resume_generation": "called by engines",
    "openrlhf.trainer.ray.vllm_engine:RolloutRayActor.reset_prefix_cache": "called by CpuPolicy",
    "openrlhf.trainer.ray.vllm_engine:RolloutRayActor.sleep": "called by samples and suite",
    "openrlhf.trainer.ray.vllm_engine:RolloutRayActor.wake_up": "called by samples and suite",
    "openrlhf.utils.deepspeed.deepspeed:DeepspeedStrategy.get_ds_eval_config": "called by prm",
    "openrlhf.utils.deepspeed.deepspeed:DeepspeedStrategy.setup_ring_attn": "calls flash_attn_stand_in",
    "openrlhf.utils.logging_utils:TensorboardLogger.log_eval": "called by curves",
    "openrlhf.utils.logging_utils:WandbLogger.log_eval": "called by curves",
    "ray.actor:_modify_class": "upstream.plain_class takes the class out again",
    "vllm.v1.engine.async_llm:AsyncLLM.collective_rpc": "called by CpuRollout",
    "vllm.v1.engine.async_llm:AsyncLLM.shutdown": "called by engine",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.reload_weights": "called by CpuWorkerExtension",
}
_TRL = "trl.trainer.grpo_trainer:GRPOTrainer"
ALSO_OF = {
    "trl": {
        f"{_TRL}._prepare_inputs": "shuffles and splits the advantages with their batch",
        f"{_TRL}.get_gamma_weights": "takes advantages a token",
        f"{_TRL}.get_off_policy_mask": "takes advantages a token",
        "trl.trainer.utils:RepeatSampler.__iter__": "the rollouts of a prompt are neighbours, over all processes",
        "trl.trainer.utils:add_fused_lm_head": "multiplies the backbone's output with the head's weight",
        "trl.trainer.utils:shuffle_sequence_dict": "permutes the advantages with their batch",
        "trl.trainer.utils:split_tensor_dict": "splits the advantages with their batch",
    },
    "verl": {
        "verl.single_controller.base.decorator:make_nd_compute_dataproto_dispatch_fn": "how rows reach the worker",
        "verl.single_controller.base.decorator:register": "decorates ShearWorker.compute_log_prob as verl's",
        "verl.trainer.ppo.padding_utils:construct_minimal_padding_template": "makes rows of which nothing counts",
        "verl.trainer.ppo.ray_trainer:compute_advantage": "calls the estimator",
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._setup": "makes workers of role_worker_mapping",
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._step_once": "weighs before advantages, on scored rows",
        "verl.trainer.ppo.v1.utils:compute_advantage_for_multi_trajectories": "hands estimators but GRPO all rows",
        "verl.utils.transferqueue_utils:tqbridge": "puts every field of what a worker returns into its batch",
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._gather_and_unpad_packed": "called by captured_rows",
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.forward_backward_batch": "calls forward_step by name",
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.get_data_parallel_group": "called by credited",
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.forward_step": "wrapped by captured_rows",
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.prepare_model_inputs": "packs or pads rows",
        "verl.workers.engine_workers:TrainingWorker.infer_batch": "calls the engine that captured_rows listens to",
    },
}


def uses(folder: Path = TRAIN) -> dict[str, str]:
    """Return every function or class that the files of the fork rely on, and how which file uses it."""
    return _uses(sorted(folder.rglob("*.py"), key=lambda path: path.stem), PACKAGES, ALSO, hooks.patches())


def uses_of(other: str) -> dict[str, str]:
    """Likewise the integration of a package."""
    return _uses([INTEGRATIONS / f"{other}.py"], (other,), ALSO_OF[other], [])


def _uses(
    paths: list[Path], packages: tuple[str, ...], also: dict[str, str], patches: list[hooks.Patch]
) -> dict[str, str]:
    files = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    sources = contract.Sources()
    seen: dict[str, dict[str, list[str]]] = {}

    def note(name: str, verb: str, user: str = "") -> None:
        if package(name) in packages and sources.definition(name) is not None:
            users = seen.setdefault(name, {}).setdefault(verb, [])
            users += [user] * (user not in users)

    for patch in patches:
        note(patch.place, "replaced by", patch.by)
    for file, tree in files.items():
        for name in calls(tree):
            note(name, "called by", file)
    for name, verb, user in methods(files):
        note(name, verb, user)
    for name, use in also.items():
        assert sources.folder(package(name)) is None or sources.definition(name), f"{name} is gone: {use}"
        note(name, use)
    return {
        name: "; ".join(f"{verb} {', '.join(users)}".strip() for verb, users in verbs.items())
        for name, verbs in seen.items()
    }


def imported(tree: ast.Module) -> dict[str, str]:
    """Local names, wherever they are imported, and what they stand for: "module:name", or "module" alone."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}:{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name if alias.asname else "" for alias in node.names}
    return {name: of for name, of in names.items() if package(of) in (*PACKAGES, *OTHERS, "openrlhf_shear")}


def calls(tree: ast.Module) -> Iterator[str]:
    """Functions that a file imports and calls: f(...), module.f(...), Class(...), Class.f(...)."""
    names = imported(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func, names)
        # Of the others' functions, which are documented, only those whose parameters' order counts.
        if package(name) == "openrlhf" or (package(name) in ("deepspeed", "vllm", *OTHERS) and node.args):
            yield name
            yield f"{name}.__init__"


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value, names)):
        return f"{owner}.{node.attr}" if ":" in owner else f"{owner}:{node.attr}"
    return ""


def methods(files: dict[str, ast.Module]) -> Iterator[tuple[str, str, str]]:
    """Methods of upstream's classes that a subclass of the fork overrides or calls: name, which of the two, who."""
    nodes, bases_of = _classes(files)
    for name in nodes:
        line, bases = _ancestry(name, bases_of)
        for ancestor in line:
            for method, verb in _reached(nodes[ancestor]):
                for base in bases:
                    yield f"{base}.{method}", verb, ancestor


def subclasses(folder: Path) -> Iterator[tuple[ast.ClassDef, list[str]]]:
    """Every class of the fork and the classes of upstream that it derives from."""
    nodes, bases_of = _classes(
        {path.stem: ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"), key=lambda path: path.stem)}
    )
    return ((node, _ancestry(name, bases_of)[1]) for name, node in nodes.items())


def _classes(files: dict[str, ast.Module]) -> tuple[dict[str, ast.ClassDef], dict[str, list[str]]]:
    """The classes of the fork by name, and the names of their bases."""
    nodes, bases_of = {}, {}
    for tree in files.values():
        names = imported(tree)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                nodes[node.name], bases_of[node.name] = node, _bases(node, names)
    for name, upstream in _mixins(files).items():
        bases_of[name] = [upstream, *bases_of[name]]
    return nodes, bases_of


def _bases(node: ast.ClassDef, names: dict[str, str]) -> list[str]:
    """By name as they are imported; plain for classes of the fork."""
    inner = [base.args[0] if isinstance(base, ast.Call) else base for base in node.bases]  # plain_class(X)
    plain = [dotted(base, names) or getattr(base, "id", "") for base in inner]
    return [name.partition(":")[2] if name.startswith(OURS) else name for name in plain]


def _mixins(files: dict[str, ast.Module]) -> dict[str, str]:
    """Of the CPU backend's mixins, which class of upstream each is put in front of."""
    for node in files["backend"].body if "backend" in files else ():
        if isinstance(node, ast.Assign) and node.targets[0].id == "MIXINS":
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {mixin.id: getattr(hooks, patch.attr).place for patch, mixin in pairs}
    return {}


def _ancestry(name: str, bases_of: dict[str, list[str]]) -> tuple[list[str], list[str]]:
    """A class and its ancestors in the fork, and those upstream."""
    line, bases = [name], []
    for base in bases_of[name]:
        if base in bases_of:
            more, upstream = _ancestry(base, bases_of)
            line, bases = line + more, bases + upstream
        elif package(base) in (*PACKAGES, *OTHERS):
            bases.append(base)
    return line, bases


def _reached(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    own = {method.name for method in node.body if isinstance(method, FUNCTION)}
    yield from ((name, "overridden by") for name in sorted(own))
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            owner, name = ast.unparse(call.func.value), call.func.attr
            if owner in ("self", "super()") and name not in own:
                yield name, "called by"


def terms(used: dict[str, str]) -> dict[str, contract.Term]:
    """The contract as the files here and the installed packages would have it."""
    sources = contract.Sources()
    return {name: replace(sources.term(name), use=use) for name, use in used.items()}


if __name__ == "__main__":
    found = contract.Sources()
    wanted = {contract.CLUSTER: uses()} if all(map(found.folder, PACKAGES)) else {}
    wanted |= {contract.CONTRACTS / f"{other}.json": uses_of(other) for other in OTHERS if found.folder(other)}
    for path, used in wanted.items():
        contract.write(terms(used), path)
        print(f"{len(used)} terms in {path}")
