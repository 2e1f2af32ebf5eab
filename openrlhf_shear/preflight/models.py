"""The models that a run names: their config.json, read once; whether the run can use them, and its adapters."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openrlhf_shear.config.refusal import Finding, LineError, Refusal, refusal, refuse
from openrlhf_shear.data import hub
from openrlhf_shear.data.files import looks_local, near_path
from openrlhf_shear.line.run import Run
from openrlhf_shear.memory.model_shape import ModelShape, model_shape
from openrlhf_shear.preflight.weights import broken

PRM_ARCHITECTURE = "Qwen2ForProcessRewardModel"
_ALLOWED = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_TOKENIZERS = {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt", "spiece.model"}
_SAVED = "the folder of a saved model"
_MERGED = "whose adapters are not merged for vLLM"
_EMBEDDINGS, _HEADS = {"embed_tokens", "embed_in", "wte", "word_embeddings"}, {"lm_head", "embed_out"}


@dataclass(frozen=True)
class ModelFiles:
    """What is known of a model before it is loaded."""

    flag: str  # that names it
    name: str | None  # a folder or hub id
    path: str | None = None  # of its config.json; None if there is no such model, or if it is on ModelScope
    config: dict = field(default_factory=dict)  # the content of config.json
    own_code: str = ""  # the file that names Python code of the model (`auto_map`)
    shape: ModelShape | None = None
    unknown: str = ""  # why its shape is not known
    missing: Refusal | None = None  # why there is no such model
    invalid: Refusal | None = None  # why a file of it cannot be read


Models = Mapping[str, ModelFiles]
"""By "actor", and by "critic", "reward" and "prm" if the run uses them."""


def read_models(run: Run) -> Models:
    """Read the config.json of every model that a run uses."""
    places = {"actor": "actor"} | ({} if run.graded else {"reward": "reward"})
    if run.estimator == "gae":  # without a named critic OpenRLHF takes the reward model, or the policy
        places["critic"] = "critic" if run.critic.model_name_or_path else places.get("reward", "actor")
    if "prm_scores" in run.traits.needs:
        places["prm"] = "prm"
    flags = {section: f"{section}.model_name_or_path" for section in places.values()}
    files = {section: read_model(flag, run.flags[flag], run.use_ms) for section, flag in flags.items()}
    return {model: files[section] for model, section in places.items()}


def read_model(flag: str, name: str | None, use_ms: bool = False) -> ModelFiles:
    """Read a model's config.json and tokenizer_config.json; what is wrong stands in the result."""
    if not name:
        return ModelFiles(flag, name, unknown=f"{flag} is not set")
    try:
        path = model_config(flag, name, use_ms)
    except LineError as error:
        return ModelFiles(flag, name, missing=error.refusals[0], unknown=str(error))
    if path is None:
        return ModelFiles(flag, name, unknown=f"{flag} {name}: models of ModelScope are not looked up")
    contents, invalid, shape, unknown = {}, None, None, ""
    # A hub model's tokenizer file may arrive later, with the code of the same repository.
    for file in filter(Path.is_file, (Path(path), Path(path).with_name("tokenizer_config.json"))):
        try:
            contents[file.name] = dict(json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            invalid = refusal(flag, f"has an invalid {file.name} ({error})", name, _SAVED)
            break
    config = contents.get("config.json", {})
    try:
        shape = model_shape(config, Path(path).parent)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        unknown = f"{flag} {name}: {error}"
    own_code = next((file for file, content in contents.items() if "auto_map" in content), "")
    return ModelFiles(flag, name, path, config, own_code, shape, unknown, invalid=invalid)


def model_config(flag: str, name: str, use_ms: bool = False) -> str | None:
    """Return the path of a model's config.json; None for a model on ModelScope, whose path is not known.

    Raises:
        LineError: there is no such model, here or on the hub.
    """
    if os.path.isfile(name):
        refuse(flag, "names a file", name, f"its folder, {os.path.dirname(name) or '.'}")
    if looks_local(name):
        if not os.path.isdir(name):
            refuse(flag, f"names a folder that is not there{near_path(name)}", name, "a model folder or a hub id")
        if os.path.isfile(os.path.join(name, "adapter_config.json")):  # PEFT saved it; vLLM cannot load it
            problem = "names a folder of LoRA adapters, which are not a model by themselves"
            place = "the parent folder, where training saved the merged model"
            refuse(flag, problem, name, f"{place}, or python -m openrlhf.cli.lora_combiner")
        path = os.path.join(name, "config.json")
        if not os.path.isfile(path):
            refuse(flag, "names a folder without config.json", name, _SAVED)
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


def check_model(flag: str, name: str, trusted: bool) -> None:
    """Refuse what `usable` refuses. Raises LineError."""
    for problem in usable(read_model(flag, name), trusted):
        raise LineError(problem)


def usable(model: ModelFiles, trusted: bool) -> Iterator[Refusal]:
    """Refuse a missing model, and one with Python code (`auto_map`), which OpenRLHF and vLLM would run without asking.

    With `trusted` the code may run.
    """
    if model.missing:
        yield model.missing
    elif model.invalid and not trusted:
        yield model.invalid
    elif model.own_code and not trusted:
        problem = f"is a model with its own Python code (auto_map in its {model.own_code}), which would run here"
        remedy = "--trust_remote_code if you have read it, or a model that needs none"
        yield refusal(model.flag, problem, model.name, remedy)


def models(run: Run, files: Models) -> Iterator[Finding]:
    """Check that every model can be loaded, and is as long as the run needs."""
    if not run.graded and "," in (run.reward.model_name_or_path or ""):
        flag = "reward.model_name_or_path"
        problem = "must be one model; OpenRLHF 0.11 cannot load a list"
        yield run.refusal(flag, problem, "one model, or --reward.remote_url for several")
    for model in ("actor", "reward", "critic"):
        if model in files:
            yield from usable(files[model], run.trust_remote_code)
    actor = files["actor"]
    if actor.name and os.path.isdir(actor.name):
        if _TOKENIZERS.isdisjoint(os.listdir(actor.name)):
            remedy = "AutoTokenizer.from_pretrained(BASE).save_pretrained(FOLDER) to put the base model's there"
            yield refusal(actor.flag, "names a folder without a tokenizer", actor.name, remedy)
        elif not (actor.missing or actor.invalid or actor.own_code):
            yield from broken(actor.flag, actor.name, actor.config)
    yield from _positions("data.max_len", run.data.max_len, actor)
    if "prm" in files:
        yield from _prm(run, files["prm"])


def _prm(run: Run, prm: ModelFiles) -> Iterator[Refusal]:
    """Refuse a process reward model of an unknown format, or with fewer positions than `prm.max_len`."""
    if prm.missing or prm.invalid:
        yield prm.missing or prm.invalid
    elif prm.path and PRM_ARCHITECTURE not in (prm.config.get("architectures") or ()):
        problem = (
            "is no process reward model of the format of Qwen/Qwen2.5-Math-PRM-7B: its config.json says "
            f"{prm.config.get('architectures')}, not {PRM_ARCHITECTURE}"
        )
        yield refusal(prm.flag, problem, prm.name, "that model, or a model saved in its format")
    else:
        yield from _positions("prm.max_len", run.prm.max_len, prm)


def _positions(flag: str, length: int, model: ModelFiles) -> Iterator[Refusal]:
    """Refuse a length above the model's positions, unless these are scaled. vLLM and the PRM would refuse it later."""
    rope, positions = model.config.get("rope_parameters") or {}, model.config.get("max_position_embeddings")
    scaled = model.config.get("rope_scaling") or rope.get("rope_type", "default") != "default"
    if isinstance(positions, int) and length > positions and not scaled and _ALLOWED not in os.environ:
        yield refusal(flag, f"exceeds the model's {positions} positions", length, f"at most {positions}")


def adapters(run: Run, files: Models) -> Iterator[Finding]:
    """Refuse LoRA and 4-bit weights in combinations that cannot be merged for vLLM, saved or averaged."""
    if run.ds.load_in_4bit:
        # Upstream sends vLLM the packed bytes, and vLLM's worker asserts that they have the model's dtype.
        yield run.refusal("ds.load_in_4bit", "means weights that cannot be sent to vLLM", "--ds.lora.rank without it")
    rank = run.ds.lora.rank
    if rank < 0:
        yield run.refusal("ds.lora.rank", "must be at least 0", "e.g. 16, or 0 to train all weights")
    if rank <= 0:
        return
    if run.ds.lora.alpha < 1:
        yield run.refusal("ds.lora.alpha", "must be at least 1, or adapters do nothing", "e.g. 16")
    if not 0 <= run.ds.lora.dropout < 1:
        yield run.refusal("ds.lora.dropout", "must be in [0, 1)", "e.g. 0.05")
    if run.ds.tensor_parallel_size > 1:
        flag, remedy = "ds.tensor_parallel_size", "1 (ZeRO), or --ds.lora.rank 0"
        yield run.refusal(flag, f"means a tensor parallel actor, {_MERGED}", remedy)
    if run.train.enable_ema:
        # Upstream pairs the parameters of a model that has adapters with those of a model without adapters.
        yield run.refusal(
            "train.enable_ema", "does not go with LoRA, whose weights it would mix up", "only one of the two"
        )
    yield from _targets(run, files["actor"].config)


def _targets(run: Run, config: dict) -> Iterator[Finding]:
    flag = "ds.lora.target_modules"
    named = run.flags[flag]  # PEFT knows all-linear only as a string (upstream's default); a command line gives a list
    if not named or named == ["all-linear"]:
        remedy = "e.g. q_proj v_proj, or no such flag"
        yield run.refusal(flag, "must name layers, or be left out, which means all-linear", remedy)
        return
    if "vision_config" in config:
        # For such a model upstream sends vLLM only the trained weights, but merging changes the frozen weights.
        yield run.refusal("ds.lora.rank", f"with a vision-language model, {_MERGED}", "0")
    wrong = {*named} & (_EMBEDDINGS | (_HEADS if config.get("tie_word_embeddings") else set()))
    if wrong and not isinstance(named, str):
        problem = "names an embedding, or a head that shares its weights; neither is merged for vLLM"
        yield refusal(flag, problem, sorted(wrong), "other layers, or no such flag")
