"""Checks of LoRA and 4-bit weights: combinations that cannot be merged for vLLM, saved or averaged."""

from collections.abc import Iterator

from openrlhf_shear.config.refusal import Finding, refusal
from openrlhf_shear.line.values import Values
from openrlhf_shear.memory.model_shape import config_of
from openrlhf_shear.preflight.inputs import model_config

_MERGED = "whose adapters are not merged for vLLM"
_EMBEDDINGS, _HEADS = {"embed_tokens", "embed_in", "wte", "word_embeddings"}, {"lm_head", "embed_out"}


def adapters(values: Values) -> Iterator[Finding]:
    if values["ds.load_in_4bit"]:
        # Upstream sends vLLM the packed bytes, and vLLM's worker asserts that they have the model's dtype.
        yield refusal("ds.load_in_4bit", "means weights that cannot be sent to vLLM", True, "--ds.lora.rank without it")
    rank = values["ds.lora.rank"]
    if rank < 0:
        yield refusal("ds.lora.rank", "must be at least 0", rank, "e.g. 16, or 0 to train all weights")
    if rank <= 0:
        return
    if values["ds.lora.alpha"] < 1:
        yield refusal("ds.lora.alpha", "must be at least 1, or adapters do nothing", values["ds.lora.alpha"], "e.g. 16")
    if not 0 <= values["ds.lora.dropout"] < 1:
        yield refusal("ds.lora.dropout", "must be in [0, 1)", values["ds.lora.dropout"], "e.g. 0.05")
    if values["ds.tensor_parallel_size"] > 1:
        flag, remedy = "ds.tensor_parallel_size", "1 (ZeRO), or --ds.lora.rank 0"
        yield refusal(flag, f"means a tensor parallel actor, {_MERGED}", values[flag], remedy)
    if values["train.enable_ema"]:
        # Upstream pairs the parameters of a model that has adapters with those of a model without adapters.
        yield refusal(
            "train.enable_ema", "does not go with LoRA, whose weights it would mix up", True, "only one of the two"
        )
    yield from _targets(values)


def _targets(values: Values) -> Iterator[Finding]:
    flag, model = "ds.lora.target_modules", "actor.model_name_or_path"
    named = values[flag]  # PEFT knows all-linear only as a string (upstream's default); a command line gives a list
    if not named or named == ["all-linear"]:
        remedy = "e.g. q_proj v_proj, or no such flag"
        yield refusal(flag, "must name layers, or be left out, which means all-linear", named, remedy)
        return
    path = model_config(model, values[model], values["use_ms"])
    config = config_of(path) if path else {}
    if "vision_config" in config:
        # For such a model upstream sends vLLM only the trained weights, but merging changes the frozen weights.
        yield refusal("ds.lora.rank", f"with a vision-language model, {_MERGED}", values["ds.lora.rank"], "0")
    wrong = {*named} & (_EMBEDDINGS | (_HEADS if config.get("tie_word_embeddings") else set()))
    if wrong and not isinstance(named, str):
        problem = "names an embedding, or a head that shares its weights; neither is merged for vLLM"
        yield refusal(flag, problem, sorted(wrong), "other layers, or no such flag")
