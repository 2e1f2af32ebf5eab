"""Checks of the code, models and benchmarks that a command line names: do they exist, and do they fit the flags?"""

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from openrlhf_shear.config.refusal import Finding, Refusal, caught, refusal, refuse
from openrlhf_shear.data import hub
from openrlhf_shear.data.files import DataError, looks_local, near_path
from openrlhf_shear.line.values import ESTIMATOR, Values, graded
from openrlhf_shear.memory.model_shape import config_of
from openrlhf_shear.preflight.rewards import graders, jailed
from openrlhf_shear.preflight.rules import needs_prm

PRM_ARCHITECTURE = "Qwen2ForProcessRewardModel"
_ALLOWED = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def code(values: Values) -> Iterator[Finding]:
    agent = values["train.agent_func_path"]
    if agent:
        if not agent.endswith(".py") or not os.path.isfile(agent):
            yield refusal("train.agent_func_path", "must be a Python file", agent, "the path of an existing .py file")
        else:
            yield from caught(_agent, agent)
    elif values["reward.remote_url"]:
        yield from graders(values, values["reward.remote_url"])


def _agent(file: str) -> None:
    """Refuse a file that is no Python, or that names no AgentExecutor; it is not run, which takes an engine."""
    flag, name = "train.agent_func_path", "AgentExecutor"
    try:
        source = Path(file).read_bytes()
        compile(source, file, "exec", dont_inherit=True)  # finds more than ast.parse, e.g. a return outside a function
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte
        refuse(flag, f"is no Python file ({error})", file, f"python {file} to see the error")
    if not {name, "*"} & set(_module_names(ast.parse(source))):
        refuse(flag, f"has no {name}", file, f"class {name}(MultiTurnAgentExecutor), as in examples/agents")


def _module_names(part: ast.AST) -> Iterator[str]:
    """Yield the names that a module may define: also under `if` and `try`, but not in functions and classes."""
    for inner in ast.iter_child_nodes(part):
        if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield inner.name
        elif isinstance(inner, ast.alias):
            yield inner.asname or inner.name
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id
        elif not isinstance(inner, ast.Lambda):
            yield from _module_names(inner)


def models(values: Values) -> Iterator[Finding]:
    used = ["actor"]
    if not graded(values):
        flag = "reward.model_name_or_path"
        if "," in values[flag]:
            problem = "must be one model; OpenRLHF 0.11 cannot load a list"
            yield refusal(flag, problem, values[flag], "one model, or --reward.remote_url for several")
        used.append("reward")
    if values[ESTIMATOR] == "gae" and values["critic.model_name_or_path"]:
        used.append("critic")
    for flag in (f"{model}.model_name_or_path" for model in used):
        yield from caught(check_model, flag, values[flag], values["trust_remote_code"], values["use_ms"])
    yield from caught(_tokenizer, values["actor.model_name_or_path"])
    yield from caught(_positions, "data.max_len", values, "actor.model_name_or_path")
    if needs_prm(values[ESTIMATOR]):
        yield from caught(_prm, values)


def _tokenizer(name: str) -> None:
    """Refuse a policy's folder without any file that transformers can make a tokenizer from."""
    files = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt", "spiece.model")
    if looks_local(name) and not any(os.path.isfile(os.path.join(name, file)) for file in files):
        remedy = "AutoTokenizer.from_pretrained(BASE).save_pretrained(FOLDER) to put the base model's there"
        refuse("actor.model_name_or_path", "names a folder without a tokenizer", name, remedy)


def _prm(values: Values) -> None:
    """Refuse a process reward model of an unknown format, or with fewer positions than `prm.max_len`."""
    flag = "prm.model_name_or_path"
    path = model_config(flag, values[flag], values["use_ms"])
    if path is None:
        return
    try:
        config = config_of(path)
    except (ValueError, TypeError) as error:
        refuse(flag, f"has an invalid config.json ({error})", values[flag], "the folder of a saved model")
    if PRM_ARCHITECTURE not in (config.get("architectures") or ()):
        problem = (
            "is no process reward model of the format of Qwen/Qwen2.5-Math-PRM-7B: its config.json says "
            f"{config.get('architectures')}, not {PRM_ARCHITECTURE}"
        )
        refuse(flag, problem, values[flag], "that model, or a model saved in its format")
    _positions("prm.max_len", values, flag)


def _positions(flag: str, values: Values, model: str) -> None:
    """Refuse a length above the model's positions, unless these are scaled. vLLM and the PRM would refuse it later."""
    path = model_config(model, values[model], values["use_ms"])
    config = config_of(path) if path and Path(path).is_file() else {}
    scaled = (
        config.get("rope_scaling") or (config.get("rope_parameters") or {}).get("rope_type", "default") != "default"
    )
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and values[flag] > positions and not scaled and _ALLOWED not in os.environ:
        refuse(flag, f"exceeds the model's {positions} positions", values[flag], f"at most {positions}")


def check_model(flag: str, name: str, trusted: bool, use_ms: bool = False) -> None:
    """Refuse a missing model, and a model with Python code (`auto_map`). OpenRLHF and vLLM run such code unasked.

    Raises:
        ValueError: there is no such model, or it has its own code and is not `trusted`.
    """
    config = model_config(flag, name, use_ms)
    if config is None or trusted:
        return
    for file in (Path(config), Path(config).with_name("tokenizer_config.json")):
        # A hub model's tokenizer file may arrive later, with the code of the same repository.
        if not file.is_file():
            continue
        try:
            has_code = "auto_map" in config_of(file)
        except (ValueError, TypeError) as error:
            refuse(flag, f"has an invalid {file.name} ({error})", name, "the folder of a saved model")
        if has_code:
            problem = f"is a model with its own Python code (auto_map in its {file.name}), which would run here"
            refuse(flag, problem, name, "--trust_remote_code if you have read it, or a model that needs none")


def model_config(flag: str, name: str, use_ms: bool = False) -> str | None:
    """Return the path of a model's config.json; None for a model on ModelScope, whose path is not known.

    Raises:
        ValueError: there is no such model, here or on the hub.
    """
    if os.path.isfile(name):
        refuse(flag, "names a file", name, f"its folder, {os.path.dirname(name) or '.'}")
    if looks_local(name):
        if not os.path.isdir(name):
            refuse(flag, f"names a folder that is not there{near_path(name)}", name, "a model folder or a hub id")
        _refuse_adapters(flag, name)
        path = os.path.join(name, "config.json")
        if not os.path.isfile(path):
            refuse(flag, "names a folder without config.json", name, "the folder of a saved model")
        return path
    if use_ms:
        return None
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json")
        if not isinstance(cached, str) and (problem := hub.unreachable()):
            raise OSError(problem)
        return cached if isinstance(cached, str) else hf_hub_download(name, "config.json")
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        problem = f"is neither a folder here nor a model that can be reached on the hub ({cause})"
        refuse(flag, problem, name, "a model folder that exists, or check the id and the connection")


def _refuse_adapters(flag: str, folder: str) -> None:
    """Refuse a folder that PEFT saved: vLLM cannot load it."""
    if os.path.isfile(os.path.join(folder, "adapter_config.json")):
        problem = "names a folder of LoRA adapters, which are not a model by themselves"
        remedy = "the parent folder, where training saved the merged model, or python -m openrlhf.cli.lora_combiner"
        refuse(flag, problem, folder, remedy)


def suite(values: Values) -> Iterator[Finding]:
    """Load the first question of each benchmark, and check that its grader can run."""
    if not values["eval.suite"]:
        return
    from openrlhf_shear.evaluation.suite import suite_benchmarks
    from openrlhf_shear.sampling.benchmarks import load_questions

    folder = Path(values["eval.data_dir"]) if values["eval.data_dir"] else None
    flags = ("eval.suite", "reward.remote_url", "data.input_key", "data.label_key")
    try:
        for benchmark in suite_benchmarks(*(values[flag] for flag in flags)):
            load_questions(benchmark, folder, limit=1)
    except (DataError, ValueError) as error:
        yield Refusal("eval.suite", str(error))
    yield from jailed(values, "eval.suite")
