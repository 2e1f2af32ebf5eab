"""The models that a run names: their config.json, read once; whether the run can use and load them.

transformers loads some broken folders without an error: weights whose names it does not know stay random. So the
policy's headers, some values and its tokenizer are checked at once, and all names and shapes before Ray starts.
"""

import importlib.util
import json
import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from openrlhf_shear.config.refusal import Finding, LineError, Refusal, refusal, refuse
from openrlhf_shear.data import hub
from openrlhf_shear.data.files import POINTER, foreign, looks_local, near_path, one_line
from openrlhf_shear.line.run import Run
from openrlhf_shear.memory.model_shape import ModelShape, model_shape

PRM_ARCHITECTURE = "Qwen2ForProcessRewardModel"
_ALLOWED = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_TOKENIZERS = {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt", "spiece.model"}
_DEPTHS = ("*/", "*/*/")  # where a model may be within a folder
_SAVED = "the folder of a saved model"
_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"
_OLD = ("pytorch_model.bin", "pytorch_model.bin.index.json")  # pickles, which transformers and vLLM load too
_HEADER = 8  # bytes of the header's length
_MOST_HEADER = 100_000_000  # bytes, the format's limit
_SAMPLED, _SAMPLE = 8, 4096  # tensors whose beginnings are read, elements of each
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # numpy has no bfloat16
_PROMPTS = "What is 17 + 25?", "1+2="
_EMBEDDING = "embed_tokens.weight"
_LAYER = re.compile(r"\.(?:layers|h)\.(\d+)\.")
_QUOTED = re.compile(r"\"([\w.-]+)\"")
_ENCODERS = {"bert", "roberta", "electra", "xlm-roberta", "t5", "mt5", "bart", "distilbert", "modernbert"}
_VOCABULARIES = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
DAMAGED = "download it again, or name another folder"


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
            cause = foreign(str(file)) or error
            invalid = refusal(flag, f"has an invalid {file.name} ({cause})", name, _SAVED)
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
        folder = os.path.dirname(name) or "."
        whole = os.path.isfile(os.path.join(folder, "config.json"))
        refuse(flag, "names a file", name, f"its folder, {folder}" if whole else _SAVED)
    if looks_local(name):
        if not os.path.isdir(name):
            refuse(flag, f"names a folder that is not there{near_path(name)}", name, "a model folder or a hub id")
        if os.path.isfile(os.path.join(name, "adapter_config.json")):  # PEFT saved it; vLLM cannot load it
            problem = "names a folder of LoRA adapters, which are not a model by themselves"
            place = "the parent folder, where training saved the merged model"
            refuse(flag, problem, name, f"{place}, or python -m openrlhf.cli.lora_combiner")
        path = os.path.join(name, "config.json")
        if not os.path.isfile(path):
            inside = next((found.parent for depth in _DEPTHS for found in Path(name).glob(f"{depth}config.json")), None)
            hint = f" (did you mean {inside}?)" if inside else ""
            refuse(flag, f"names a folder without config.json{hint}", name, _SAVED)
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
        problem = (
            f"is neither a folder here nor a model that can be reached on the hub ({one_line(error)}){near_path(name)}"
        )
        small = "python -m openrlhf_shear.cli.make_smollm2 --out DIR makes a small one"
        refuse(flag, problem, name, f"a model folder that exists ({small}), or check the id and the connection")


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


# ── Weights and tokenizer ──


class Tensor(NamedTuple):
    """A tensor of a header."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int  # of its bytes in the file


class DamagedError(ValueError):
    """A file of weights that cannot be loaded; the message says why."""


def broken(flag: str, name: str, config: Mapping) -> Iterator[Refusal]:
    """Refuse a policy that cannot be loaded, or would be loaded wrongly. It reads headers, samples and the tokenizer.

    Args:
        flag, name: the flag, and the folder of the model.
        config: the content of its config.json.
    """
    folder = Path(name)
    if "quantization_config" in config:
        yield refusal(flag, "is a quantised model, whose weights are not trained", name, "the model in bfloat16")
        return
    try:
        tensors = headers(folder)
    except DamagedError as error:
        yield refusal(flag, f"has weights that cannot be loaded: {error}", name, DAMAGED)
        return
    yield from _kind(flag, name, config)
    if tensors is not None:
        yield from _against_config(flag, name, config, tensors)
        sample = list(tensors)[:: max(1, len(tensors) // _SAMPLED)]
        bad = [each for each in sample if not _is_finite(tensors[each])]
        if bad:
            yield refusal(flag, f"has weights that are not finite, such as {bad[0]}", name, DAMAGED)
    yield from _tokenizer(flag, name, config, tensors)


def headers(folder: Path) -> dict[str, Tensor] | None:
    """Return the tensors of a folder's safetensors files by name; None if its weights are pickles.

    Raises DamagedError: a file is missing, cut off, or only a pointer of git-lfs.
    """
    if (index := folder / _INDEX).is_file():
        try:
            files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{_INDEX} is invalid ({error})") from None
    elif (folder / _WHOLE).is_file():
        files = [_WHOLE]
    elif any((folder / old).is_file() for old in _OLD):
        return None
    else:
        raise DamagedError(f"there is neither {_WHOLE} nor {_INDEX}")
    found: dict[str, Tensor] = {}
    for file in files:
        found |= _header(folder / file)
    return found


def linear_layers(model: ModelFiles) -> list[str]:
    """Return the names of a folder's matrices; none if they are not known."""
    try:
        tensors = headers(Path(model.name)) if model.path and looks_local(model.name) else None
    except DamagedError:  # `broken` tells
        tensors = None
    return [name for name, tensor in (tensors or {}).items() if name.endswith(".weight") and len(tensor.shape) == 2]


def _header(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise DamagedError(f"{file.name} is missing")
    size = file.stat().st_size
    with file.open("rb") as bytes_of:
        begin = bytes_of.read(_HEADER)
        if POINTER.startswith(begin) and begin:
            raise DamagedError(foreign(str(file)))
        length = struct.unpack("<Q", begin)[0] if len(begin) == _HEADER else _MOST_HEADER
        if _HEADER + length > min(size, _MOST_HEADER):
            raise DamagedError(f"{file.name} is cut off: it has {size:,} bytes")
        try:
            entries = json.loads(bytes_of.read(length))
            entries.pop("__metadata__", None)
            tensors = {
                name: Tensor(file, entry["dtype"], tuple(entry["shape"]), _HEADER + length + entry["data_offsets"][0])
                for name, entry in entries.items()
            }
            end = _HEADER + length + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{file.name} has an invalid header ({error})") from None
    if end != size:
        raise DamagedError(f"{file.name} is cut off: it has {size:,} bytes, and its header says {end:,}")
    return tensors


def _is_finite(tensor: Tensor) -> bool:
    if tensor.dtype not in _FLOATS:
        return True
    count = min(_SAMPLE, int(np.prod(tensor.shape)))
    values = np.fromfile(tensor.file, _FLOATS[tensor.dtype], count, offset=tensor.start)
    if tensor.dtype == "BF16":
        values = (values.astype("<u4") << 16).view("<f4")
    return bool(np.isfinite(values).all())


def _kind(flag: str, name: str, config: Mapping) -> Iterator[Refusal]:
    """Refuse an architecture that generates no text, or that transformers does not know."""
    kind, heads = config.get("model_type"), [each for each in config.get("architectures") or () if "For" in each]
    generates = "CausalLM", "LMHead", "ConditionalGeneration"
    if heads and not any(word in head for head in heads for word in generates):
        yield refusal(flag, f"is a {heads[0]}, which generates no text", name, "a model for causal language modelling")
    elif kind in _ENCODERS and not config.get("is_decoder"):
        yield refusal(flag, f"is an encoder ({kind}), which generates no text", name, "a model such as Qwen or Llama")
    elif "auto_map" not in config and kind not in _known_kinds():
        yield refusal(flag, f"has an unknown model_type, {kind}, in its config.json", name, "a model of transformers")


def _known_kinds() -> set[str]:
    """Return all texts in transformers' tables of model types, read without importing it."""
    (folder,) = importlib.util.find_spec("transformers").submodule_search_locations
    return {kind for file in Path(folder, "models/auto").glob("*.py") for kind in _QUOTED.findall(file.read_text())}


def _against_config(flag: str, name: str, config: Mapping, tensors: Mapping[str, Tensor]) -> Iterator[Refusal]:
    """Compare the numbers of layers and of embeddings with config.json, and refuse a wrapper's prefix."""
    if any(each.startswith("module.") for each in tensors):
        problem = f"has weights with a wrapper's prefix, such as {next(iter(tensors))}: they would stay random"
        yield refusal(flag, problem, name, "weights saved by save_pretrained of the model itself")
        return
    layers = {int(found[1]) for each in tensors if (found := _LAYER.search(each))}
    wanted = config.get("num_hidden_layers")
    if layers and "vision_config" not in config and isinstance(wanted, int) and max(layers) + 1 < wanted:
        problem = f"has weights of {max(layers) + 1} layers, and config.json says {wanted}: the others would be random"
        yield refusal(flag, problem, name, DAMAGED)
    shapes = {each.rpartition(".embed_tokens.")[0]: tensors[each].shape for each in tensors if _EMBEDDING in each}
    told = config.get("vocab_size"), config.get("hidden_size")
    if (
        len(shapes) == 1
        and all(isinstance(each, int) for each in told)
        and (own := next(iter(shapes.values()))) != told
    ):
        yield refusal(flag, f"has an embedding of the shape {own}, and config.json says {told}", name, DAMAGED)


def _tokenizer(flag: str, name: str, config: Mapping, tensors: Mapping[str, Tensor] | None) -> Iterator[Refusal]:
    """Encode a prompt, and compare its ids and the end token with the embedding."""
    remedy = "the base model's: AutoTokenizer.from_pretrained(BASE).save_pretrained(FOLDER)"
    file, ids = Path(name, "tokenizer.json"), []
    if file.is_file():
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises no other type
            cause = foreign(str(file)) or one_line(error)
            yield refusal(flag, f"has a tokenizer that cannot be loaded ({cause})", name, remedy)
            return
        ids = [each for text in _PROMPTS for each in tokenizer.encode(text, add_special_tokens=False).ids]
    elif not any(Path(name, each).is_file() for each in _VOCABULARIES):
        yield refusal(
            flag,
            f"has a tokenizer without a vocabulary: none of tokenizer.json, {', '.join(_VOCABULARIES)}",
            name,
            remedy,
        )
        return
    if file.is_file() and not ids:
        yield refusal(flag, "has a tokenizer that makes no tokens of a prompt", name, remedy)
        return
    rows = next((tensors[each].shape[0] for each in tensors or () if _EMBEDDING in each), config.get("vocab_size"))
    ends = config.get("eos_token_id")
    largest = max([*ids, *(ends if isinstance(ends, list) else [ends or 0])])
    if isinstance(rows, int) and largest >= rows:
        yield refusal(flag, f"has token ids up to {largest}, and an embedding of {rows} rows", name, remedy)


# ── Other models ──


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
