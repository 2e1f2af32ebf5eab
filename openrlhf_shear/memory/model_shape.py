"""Sizes of a model, in memory and on a disk, from its config.json alone, without transformers."""

import json
from dataclasses import dataclass
from pathlib import Path

_NO_GATE = (
    "gpt2",
    "gpt_neox",
    "gptj",
    "opt",
    "bloom",
    "falcon",
    "phi",
    "starcoder2",
)  # model types whose MLPs have two matrices
_BIASED = ("qwen2", "qwen2_moe")  # model types with q, k and v biases that config.json does not mention
_WEIGHT = 2  # bytes of a parameter in bfloat16
_LEARNED = 14  # bytes a learned parameter of a checkpoint: 2 in bfloat16, 4 in float32, 8 for Adam's two moments
_MASTER = 4  # bytes of a parameter in float32
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder; widths are per token."""

    parameters: int
    layers: int
    hidden: int  # d
    queries: int  # heads times their width
    keys: int  # key and value heads (GQA) times their width
    mlp: int  # width of the MLP; in a mixture of experts, of all experts that process a token
    vocabulary: int
    copies: int = 0  # experts a token in a mixture of experts, which copies the token for each

    def adapters(self, rank: int) -> int:
        """Return the parameters of LoRA adapters on all linear layers of the decoder: rank (in + out) a layer.

        This is an upper bound if the run names layers. Experts that are a single tensor have no adapters.
        """
        attention = 4 * self.hidden + 2 * (self.queries + self.keys)
        mlp = 0 if self.copies else 3 * (self.hidden + self.mlp)
        return self.layers * rank * (attention + mlp)


def model_shape(whole: dict, folder: Path) -> ModelShape:
    """Return the shape of a decoder from the content of its config.json.

    The number of parameters comes from model.safetensors.index.json in its folder, if that gives the weights' size.
    Otherwise a formula gives it, which is exact for the Llama, Qwen, Mistral and Mixtral families.

    Raises:
        ValueError: a size is missing.
    """
    config = whole.get("text_config") or whole  # vision-language models have a text_config

    def get(*names: str, default: int | None = None) -> int:
        value = next((config[name] for name in names if isinstance(config.get(name), int)), default)
        if value is None:
            raise ValueError(f"its config.json has no {names[0]}")
        return value

    hidden, layers = get("hidden_size", "n_embd"), get("num_hidden_layers", "n_layer")
    heads, vocabulary = get("num_attention_heads", "n_head"), get("vocab_size")
    width = get("head_dim", default=hidden // heads)
    queries, keys = heads * width, get("num_key_value_heads", default=heads) * width
    dense = get("intermediate_size", "n_inner", default=4 * hidden)
    experts = get("num_experts", "num_local_experts", "n_routed_experts", default=0)
    each = get("moe_intermediate_size", default=dense)
    shared = get("shared_expert_intermediate_size", default=get("n_shared_experts", default=0) * each)
    used = get("num_experts_per_tok", default=0) if experts else 0
    kind = config.get("model_type", "")
    matrices = 2 if kind in _NO_GATE else 3

    biased = config.get("attention_bias", kind in _BIASED)
    attention = 2 * hidden * (queries + keys) + biased * (queries + 2 * keys) + (kind[:5] == "qwen3") * 2 * width
    mlps = experts * each + shared if experts else dense
    router = experts * hidden + (kind == "qwen2_moe") * hidden  # qwen2_moe: plus the gate of the shared expert
    first = get("first_k_dense_replace", default=0) if experts else 0  # DeepSeek: first layers without experts
    body = layers * (attention + matrices * hidden * mlps + router + 2 * hidden)
    body -= first * (matrices * hidden * (mlps - dense) + router)
    tied = config.get("tie_word_embeddings", whole.get("tie_word_embeddings", False))
    parameters = body + hidden + vocabulary * hidden * (1 if tied else 2)
    mlp = used * each + shared if experts else dense
    sizes = (layers, hidden, queries, keys, mlp, vocabulary, used)
    return ModelShape(_stored(folder, config, whole) or parameters, *sizes)


def _stored(folder: Path, *configs: dict) -> int:
    """Return the parameters of the weights in a folder; 0 if no index gives their size."""
    index = folder / "model.safetensors.index.json"
    dtypes = (config.get("torch_dtype") or config.get("dtype") for config in configs)
    each = _BYTES.get(next(filter(None, dtypes), ""), 0)
    if not (index.is_file() and each):
        return 0
    metadata = json.loads(index.read_text(encoding="utf-8")).get("metadata", {})
    return metadata.get("total_size", 0) // each


def model_bytes(parameters: int) -> int:
    """Return the bytes of a saved model."""
    return _WEIGHT * parameters


def checkpoint_bytes(parameters: int, frozen: int = 0, averaged: bool = False) -> int:
    """Return the bytes of a checkpoint.

    Args:
        parameters: of the model.
        frozen: of them, those that do not learn.
        averaged: whether a moving average of the weights is saved too.

    >>> checkpoint_bytes(1000), checkpoint_bytes(1000, frozen=900), checkpoint_bytes(1000, averaged=True)
    (14000, 3200, 18000)
    """
    learned = parameters - frozen
    return _LEARNED * learned + _WEIGHT * frozen + _MASTER * learned * averaged
