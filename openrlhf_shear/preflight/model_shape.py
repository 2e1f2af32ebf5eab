"""The sizes of a model that memory goes by, from its config.json alone; transformers is not asked."""

import json
from dataclasses import dataclass
from functools import lru_cache
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
)  # model types: MLPs of two matrices
_BIASED = ("qwen2", "qwen2_moe")  # model types with biases of queries, keys and values that config.json does not name
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}


@dataclass(frozen=True)
class ModelShape:
    """Widths are per token."""

    parameters: int
    layers: int
    hidden: int  # d
    queries: int  # heads times their width
    keys: int  # key and value heads (GQA) times their width
    mlp: int  # width of the MLP; of a mixture of experts, of all experts that a token goes through
    vocabulary: int
    copies: int = 0  # of a token that a mixture of experts makes: experts a token

    def adapters(self, rank: int) -> int:
        """Parameters of LoRA beside all linear layers of the decoder: rank (in + out) each; of named ones there are
        fewer. Experts that are one tensor have none."""
        attention = 4 * self.hidden + 2 * (self.queries + self.keys)
        mlp = 0 if self.copies else 3 * (self.hidden + self.mlp)
        return self.layers * rank * (attention + mlp)


def config_of(path: str | Path) -> dict:
    """Return a model's config.json, read once for as long as the file does not change. Raises ValueError: no JSON."""
    file = Path(path)
    at = file.stat()
    return _read(file, at.st_mtime_ns, at.st_size)


@lru_cache(maxsize=16)
def _read(file: Path, changed: int, size: int) -> dict:
    return dict(json.loads(file.read_text(encoding="utf-8")))


def model_shape(path: str) -> ModelShape:
    """Of a decoder by its config.json.

    The number of parameters is that of the weights beside it, where model.safetensors.index.json says how large they
    are; else a formula's, exact for the Llama, Qwen, Mistral and Mixtral families.

    Raises:
        ValueError: it lacks what is needed.
    """
    whole = config_of(path)
    config = whole.get("text_config") or whole  # of a vision-language model

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
    router = experts * hidden + (kind == "qwen2_moe") * hidden  # and the gate of the shared expert
    first = get("first_k_dense_replace", default=0) if experts else 0  # of DeepSeek's, without experts
    body = layers * (attention + matrices * hidden * mlps + router + 2 * hidden)
    body -= first * (matrices * hidden * (mlps - dense) + router)
    tied = config.get("tie_word_embeddings", whole.get("tie_word_embeddings", False))
    parameters = body + hidden + vocabulary * hidden * (1 if tied else 2)
    mlp = used * each + shared if experts else dense
    sizes = (layers, hidden, queries, keys, mlp, vocabulary, used)
    return ModelShape(_stored(path, config, whole) or parameters, *sizes)


def _stored(path: str, *configs: dict) -> int:
    """Parameters of the weights beside a config.json; 0 where their size is not told."""
    index = Path(path).with_name("model.safetensors.index.json")
    dtypes = (config.get("torch_dtype") or config.get("dtype") for config in configs)
    each = _BYTES.get(next(filter(None, dtypes), ""), 0)
    if not (index.is_file() and each):
        return 0
    metadata = json.loads(index.read_text(encoding="utf-8")).get("metadata", {})
    return metadata.get("total_size", 0) // each
