"""The small policy in PyTorch alone, for machines without `transformers`, and equal to it bit for bit.

It supports only what such a folder holds: a Qwen2 model with tied embeddings and full attention, computed eagerly, and
a tokenizer of one character a token. Modules have the names of the weights. A test compares it with transformers.

Legend: B sequences, S positions, d hidden size, V tokens of the vocabulary.
"""

import json
import math
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn.functional import silu

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_KNOWN = {
    "model_type": "qwen2",
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "rope_parameters.rope_type": "default",
}
Keys = tuple[torch.Tensor, torch.Tensor]


class PlainTokenizer:
    """Tokenizer of one character a token, with the methods of a Hugging Face tokenizer that the policy needs."""

    def __init__(self, vocabulary: Mapping[str, int], special: Mapping[str, str]):
        """`special` is the tokenizer's configuration; it has the texts of `pad_token`, `eos_token` and `unk_token`."""
        self._ids = dict(vocabulary)
        self._tokens = {i: token for token, i in vocabulary.items()}
        self.pad_token_id, self.eos_token_id, self.unk_token_id = (
            self._ids[special[name]] for name in ("pad_token", "eos_token", "unk_token")
        )
        self.all_special_ids = [self.pad_token_id, self.eos_token_id, self.unk_token_id]
        self._special = {self._tokens[i] for i in self.all_special_ids}

    def __len__(self) -> int:
        return len(self._ids)

    def __call__(self, texts: Sequence[str], **_: object) -> dict[str, torch.Tensor]:
        """Return `input_ids` and `attention_mask`, (B, S) int64, padded on the left."""
        rows = [self.encode(text) for text in texts]
        width = max(map(len, rows))
        ids = [[self.pad_token_id] * (width - len(row)) + row for row in rows]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return one token a character; characters outside the vocabulary are dropped, as by byte-level BPE."""
        known = (self._ids.get(sign) for sign in unicodedata.normalize("NFC", text))
        return [i for i in known if i is not None]

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._tokens[int(i)] for i in ids]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False, **_: object) -> str:
        tokens = self.convert_ids_to_tokens(ids)
        return "".join(token for token in tokens if not (skip_special_tokens and token in self._special))

    def batch_decode(self, rows: Sequence[Sequence[int]], skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(row, skip_special_tokens) for row in rows]


class _Norm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight, self._eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype, x = x.dtype, x.float()
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self._eps)).to(dtype)


class _Attention(nn.Module):
    def __init__(self, size: int, heads: int, key_heads: int):
        super().__init__()
        self._size, self._shared = size // heads, heads // key_heads
        self.q_proj = nn.Linear(size, size)
        self.k_proj, self.v_proj = (nn.Linear(size, key_heads * self._size) for _ in range(2))
        self.o_proj = nn.Linear(size, size, bias=False)

    def forward(self, x: torch.Tensor, turn: Keys, mask: torch.Tensor, past: list[Keys | None], layer: int):
        parts = (project(x).unflatten(-1, (-1, self._size)) for project in (self.q_proj, self.k_proj, self.v_proj))
        queries, keys, values = (part.transpose(1, 2) for part in parts)
        queries, keys = _turned(queries, turn), _turned(keys, turn)
        if past[layer] is not None:
            keys, values = (torch.cat(pair, 2) for pair in zip(past[layer], (keys, values), strict=True))
        past[layer] = keys, values
        keys, values = (part.repeat_interleave(self._shared, 1) for part in (keys, values))
        scores = queries @ keys.transpose(2, 3) * self._size**-0.5 + mask
        mixed = scores.softmax(-1, dtype=torch.float32).to(x.dtype) @ values
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class _Mlp(nn.Module):
    def __init__(self, size: int, inner: int):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(size, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class _Layer(nn.Module):
    def __init__(self, config: Mapping):
        super().__init__()
        size, eps = config["hidden_size"], config["rms_norm_eps"]
        self.self_attn = _Attention(size, config["num_attention_heads"], config["num_key_value_heads"])
        self.mlp = _Mlp(size, config["intermediate_size"])
        self.input_layernorm, self.post_attention_layernorm = _Norm(size, eps), _Norm(size, eps)

    def forward(self, x: torch.Tensor, *others) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), *others)
        return x + self.mlp(self.post_attention_layernorm(x))


class _Body(nn.Module):
    def __init__(self, config: Mapping):
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"], config["pad_token_id"])
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = _Norm(config["hidden_size"], config["rms_norm_eps"])


class PlainPolicy(nn.Module):
    """Qwen2 model with the methods of a Hugging Face causal LM that sampling and training need."""

    def __init__(self, config: Mapping, eos: int, pad: int):
        super().__init__()
        self.model = _Body(config)
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight
        size = config["hidden_size"] // config["num_attention_heads"]
        powers = torch.arange(0, size, 2, dtype=torch.float32) / size
        frequencies = 1.0 / config["rope_parameters"]["rope_theta"] ** powers  # float32 for weights of any dtype
        self.register_buffer("_frequencies", frequencies, persistent=False)
        self.config = SimpleNamespace(**config)
        self._eos, self._pad = eos, pad

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> SimpleNamespace:
        """Return the `logits` (B, S, V) of `input_ids` (B, S), padded on the right or not at all."""
        return SimpleNamespace(logits=self.lm_head(self._states(input_ids, torch.ones_like(input_ids), self._nothing)))

    @torch.no_grad()
    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        max_new_tokens: int,
        temperature: float = 1.0,
        **_: object,
    ) -> torch.Tensor:
        """Extend `input_ids` (B, S), padded on the left, by responses: (B, S + at most `max_new_tokens`).

        Responses are drawn by torch's generator, and padded after <eos>.
        """
        past, new, ids = self._nothing, input_ids, input_ids
        unfinished = torch.ones(len(input_ids), dtype=torch.int64, device=input_ids.device)
        for _ in range(max_new_tokens):
            last = self._states(new, attention_mask, past)[:, -1:]
            logits = self.lm_head(last)[:, -1].float() / temperature
            drawn = torch.multinomial(logits.softmax(-1), 1).squeeze(1)
            drawn = drawn * unfinished + self._pad * (1 - unfinished)
            new = drawn[:, None]
            ids = torch.cat([ids, new], 1)
            attention_mask = torch.cat([attention_mask, torch.ones_like(new)], 1)
            unfinished = unfinished * (drawn != self._eos)
            if not unfinished.any():
                break
        return ids

    @property
    def _nothing(self) -> list[Keys | None]:
        """Empty list of the keys and values of earlier positions, by layer."""
        return [None] * len(self.model.layers)

    def _states(self, new: torch.Tensor, attended: torch.Tensor, past: list[Keys | None]) -> torch.Tensor:
        """Return the states (B, n, d) of the new tokens (B, n) and add their keys and values to `past`.

        The new tokens are at the last n positions of the mask `attended` (B, S).
        """
        x = self.model.embed_tokens(new)
        count = new.shape[1]
        positions = (attended.cumsum(1) - 1).clamp(min=0)[:, -count:]
        angles = positions[..., None].float() * self._frequencies
        angles = torch.cat([angles, angles], -1)[:, None]
        turn = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        causal = torch.ones(attended.shape[1], attended.shape[1], dtype=torch.bool, device=x.device).tril()[-count:]
        seen = causal & attended[:, None].bool()
        mask = torch.zeros(seen.shape, dtype=x.dtype, device=x.device)
        mask = mask.masked_fill(~seen, torch.finfo(x.dtype).min)[:, None]
        for i, layer in enumerate(self.model.layers):
            x = layer(x, turn, mask, past, i)
        return self.model.norm(x)


def _turned(x: torch.Tensor, turn: Keys) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * turn[0] + torch.cat([-x[..., half:], x[..., :half]], -1) * turn[1]


def load_plain(folder: str | Path) -> tuple[PlainPolicy, PlainTokenizer]:
    """Load a folder's policy, with float32 weights, and its tokenizer.

    Raises ValueError: the folder holds another kind of model.
    """
    folder = Path(folder)
    config, names, texts = (
        json.loads((folder / name).read_text(encoding="utf-8"))
        for name in ("config.json", "tokenizer_config.json", "tokenizer.json")
    )
    for name, value in _KNOWN.items():
        found = config
        for part in name.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        if found != value:
            raise ValueError(
                f"{folder} has {name} {found!r}, which is read by transformers alone; use: pip install transformers"
            )
    tokenizer = PlainTokenizer(texts["model"]["vocab"], names)
    model = PlainPolicy(config, tokenizer.eos_token_id, tokenizer.pad_token_id)
    missing, unexpected = model.load_state_dict(read_safetensors(folder / "model.safetensors"), strict=False)
    if set(missing) - {"lm_head.weight"} or unexpected:
        raise ValueError(f"{folder} has other weights than its config.json says: {sorted(missing + unexpected)}")
    return model.eval(), tokenizer


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a safetensors file by name: eight bytes of length, a JSON header of this length, the data."""
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, (at, _) = _DTYPES[entry["dtype"]], entry["data_offsets"]
        flat = torch.frombuffer(content, dtype=dtype, count=math.prod(entry["shape"]), offset=start + at)
        tensors[name] = flat.view(entry["shape"])
    return tensors


def load_policy(folder: str | Path):
    """Load the model (float32 weights, evaluation mode) and the tokenizer of a policy's folder.

    They are those of transformers or, if it is not installed, of this file.

    Raises ValueError: transformers is not installed, and the folder needs it.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
        from transformers.utils import logging
    except ModuleNotFoundError:
        return load_plain(folder)
    logging.disable_progress_bar()  # otherwise each loaded policy shows a bar
    # Eager attention is faster than fused attention for a hundred short sequences in bfloat16 on a CPU.
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    # AutoTokenizer loads Qwen2's tokenizer for every Qwen2 model, even if the folder names another.
    named = json.loads(Path(folder, "tokenizer_config.json").read_text(encoding="utf-8")).get("tokenizer_class")
    kind = AutoTokenizer if named == "Qwen2Tokenizer" else PreTrainedTokenizerFast
    return model.eval(), kind.from_pretrained(folder)
