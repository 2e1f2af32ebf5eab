"""Weights and tokenizer of a model folder, checked before anything loads them: headers, names, shapes, samples, ids.

transformers loads some broken folders without an error: weights whose names it does not know stay random.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from openrlhf_shear.config.refusal import Refusal, refusal

_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"
_OLD = ("pytorch_model.bin", "pytorch_model.bin.index.json")  # pickles, which transformers and vLLM load too
_POINTER = b"version https://git-lfs"
_HEADER = 8  # bytes of the header's length
_MOST_HEADER = 100_000_000  # bytes, the format's limit
_SAMPLED, _SAMPLE = 8, 4096  # tensors whose beginnings are read, elements of each
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # numpy has no bfloat16
_NAMES = 3  # shown of a list of tensors
_PROMPTS = "What is 17 + 25?", "1+2="
_DAMAGED = "download it again, or name another folder"


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
        yield refusal(flag, f"has weights that cannot be loaded: {error}", name, _DAMAGED)
        return
    if tensors is not None:
        yield from _against_architecture(flag, name, config, tensors)
        sample = list(tensors)[:: max(1, len(tensors) // _SAMPLED)]
        bad = [each for each in sample if not _is_finite(tensors[each])]
        if bad:
            yield refusal(flag, f"has weights that are not finite, such as {bad[0]}", name, _DAMAGED)
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


def _header(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise DamagedError(f"{file.name} is missing")
    size = file.stat().st_size
    with file.open("rb") as bytes_of:
        begin = bytes_of.read(_HEADER)
        if _POINTER.startswith(begin) and begin:
            raise DamagedError(f"{file.name} is a pointer of git-lfs; run git lfs pull in the folder")
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


def _against_architecture(flag: str, name: str, config: Mapping, tensors: Mapping[str, Tensor]) -> Iterator[Refusal]:
    """Compare names and shapes with the architecture's own, made without memory (meta device)."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    kind = config.get("model_type")
    heads = [each for each in config.get("architectures") or () if "For" in each]
    if heads and not any(word in head for head in heads for word in ("CausalLM", "LMHead", "ConditionalGeneration")):
        yield refusal(flag, f"is a {heads[0]}, which generates no text", name, "a model for causal language modelling")
        return
    try:
        known = AutoConfig.for_model(**config) if kind else None
    except (ValueError, TypeError) as error:
        known, kind = None, f"{kind} ({str(error).splitlines()[0][:100]})"
    if known is None:
        yield refusal(flag, f"has an unknown model_type, {kind}, in its config.json", name, "a model of transformers")
        return
    if known.is_encoder_decoder or (kind in ("bert", "roberta", "electra", "xlm-roberta") and not known.is_decoder):
        yield refusal(flag, f"is an encoder ({kind}), which generates no text", name, "a model such as Qwen or Llama")
        return
    if "vision_config" in config or get_checkpoint_conversion_mapping(kind) or type(known) not in _causal():
        return  # transformers renames these weights as it loads them
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(known)
    tied = set(model._tied_weights_keys or ()) if known.tie_word_embeddings else set()
    prefix = f"{model.base_model_prefix}."
    expected = {each: tuple(tensor.shape) for each, tensor in model.state_dict().items() if each not in tied}
    # a model saved without its head has no prefix
    tensors = {prefix + each if prefix + each in expected else each: tensor for each, tensor in tensors.items()}
    missing = [each for each in expected if each not in tensors]
    if missing:
        problem = f"lacks {len(missing)} of {len(expected)} weights, which would be random: {_some(missing)}"
        unknown = [each for each in tensors if each not in expected and each not in tied]
        problem += f"; it has others, such as {_some(unknown)}" if unknown else ""
        yield refusal(flag, problem, name, "the folder of a whole model, with the names that transformers saves")
    wrong = [each for each, shape in expected.items() if each in tensors and tensors[each].shape != shape]
    if wrong:
        shapes = f"{tensors[wrong[0]].shape}, and config.json says {expected[wrong[0]]}"
        yield refusal(flag, f"has {len(wrong)} weights of another shape: {wrong[0]} has {shapes}", name, _DAMAGED)


def _causal() -> set[type]:
    from transformers import AutoModelForCausalLM

    return {*AutoModelForCausalLM._model_mapping}


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMES]) + (", ..." if len(names) > _NAMES else "")


def _tokenizer(flag: str, name: str, config: Mapping, tensors: Mapping[str, Tensor] | None) -> Iterator[Refusal]:
    """Encode and decode a prompt, and compare its ids and the end token with the embedding."""
    from transformers import AutoTokenizer

    remedy = "the base model's: AutoTokenizer.from_pretrained(BASE).save_pretrained(FOLDER)"
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        ids = [each for text in _PROMPTS for each in tokenizer(text, add_special_tokens=False)["input_ids"]]
    except Exception as error:  # of any kind, from a file of any content
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        yield refusal(flag, f"has a tokenizer that cannot be loaded ({cause})", name, remedy)
        return
    if not ids:
        yield refusal(flag, "has a tokenizer that makes no tokens of a prompt", name, remedy)
        return
    embeddings = [each.shape[0] for key, each in (tensors or {}).items() if "embed_tokens.weight" in key]
    rows = next(iter(embeddings), config.get("vocab_size"))
    largest = max(*ids, tokenizer.eos_token_id or 0)
    if isinstance(rows, int) and largest >= rows:
        problem = f"has a tokenizer whose ids go to {largest}, and an embedding of {rows} rows"
        yield refusal(flag, problem, name, remedy)
