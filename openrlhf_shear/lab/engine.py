"""Draw the tokens of several small policies of one shape at once, on a GPU in the time of one policy.

A step of decoding takes about a hundred small GPU kernels, however little they compute. So the policies' weights
are stacked, one step serves them all, and CUDA replays it as a graph. The model is the Qwen2 of the built-in tasks.

Legend: R policies, B sequences of each policy. W positions of prompts, S positions in all, T most new tokens.
H heads, D size of a head, d hidden size, V tokens of the vocabulary.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import pad, rms_norm, scaled_dot_product_attention, silu

_PARTS = {  # of a layer's stacked matrices and biases, each with the model's parts that it joins
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
    "norm": ("input_layernorm",),
    "second_norm": ("post_attention_layernorm",),
}
_ROOM = 64  # S is a multiple of it, so that few shapes are captured
_WARM = 3  # steps before the graph is captured
LOOK_EVERY = 32  # steps between two looks whether every sequence has ended


@dataclass(frozen=True)
class Asked:
    """Request for responses of one policy to prompts."""

    model: torch.nn.Module  # Qwen2 with tied embeddings, as transformers or `plain_policy` has it
    prompts: torch.Tensor  # (B, W) int64, padded on the left
    attended: torch.Tensor  # (B, W) int64, 1 except in the padding
    new_tokens: int  # T
    temperature: float
    seed: int  # of the draws


class Engine:
    """Decodes with stacked weights; keeps its memory and its graphs for the next call of the same shape."""

    def __init__(self, eos: int, pad: int):
        self._eos, self._pad = eos, pad
        self._shapes: dict[tuple[int, ...], _Decoding] = {}

    @torch.no_grad()
    def draw(self, asked: Sequence[Asked]) -> list[torch.Tensor]:
        """Return the responses of each policy: (B, T) int64 on the CPU, padded after `<eos>`.

        A token is the argmax of p / e with one e ~ Exp(1) a token of the vocabulary, as torch.multinomial draws. The
        numbers e depend on the seed, the shape and the device, and on no other policy: policies with one seed get the
        same ones.

        Args:
            asked: of R policies of one shape, with the same B.
        """
        new = max(each.new_tokens for each in asked)
        width = max(each.prompts.shape[1] for each in asked)
        positions = -(-(width + max(new, _WARM)) // _ROOM) * _ROOM
        shape = len(asked), len(asked[0].prompts), positions
        with _as_fast_as_possible():
            if shape not in self._shapes:
                self._shapes[shape] = _Decoding(asked[0].model, *shape, self._eos, self._pad)
            return self._shapes[shape].responses(asked, width, new)


@contextlib.contextmanager
def _as_fast_as_possible() -> Iterator[None]:
    """Leave torch's deterministic mode, which replaces `index_copy_` by a sort; nothing here depends on an order."""
    asked = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(asked, warn_only=warn_only)


class _Decoding:
    """Weights, keys, values and places of R x B sequences of at most S positions."""

    def __init__(self, model: torch.nn.Module, policies: int, rows: int, positions: int, eos: int, pad: int):
        config, first = model_shape(model), next(model.parameters())
        self._heads, self._eps, self._eos, self._pad = config.heads, config.eps, eos, pad
        self._policies, self._rows, self._positions = policies, rows, positions
        self.device, kind = first.device, first.dtype
        self._weights = _Stacked(model, policies)
        size = first.shape[1] // config.heads
        where = {"device": self.device}
        cache = config.layers, 2, policies * rows, config.heads, positions, size
        self._cache = torch.zeros(cache, dtype=kind, **where)
        powers = torch.arange(0, size, 2, dtype=torch.float32, **where) / size
        self._frequencies = 1.0 / config.theta**powers
        self._seen = torch.zeros(policies * rows, 1, 1, positions, dtype=torch.bool, **where)
        self._places = torch.zeros(policies, rows, 1, dtype=torch.int64, **where)
        self._last = torch.zeros(policies, rows, 1, dtype=torch.int64, **where)
        self._running = torch.zeros(policies, rows, 1, dtype=torch.bool, **where)
        self._at, self._step = (torch.zeros(1, dtype=torch.int64, **where) for _ in range(2))
        self._temperature = torch.ones(policies, 1, 1, **where)
        self._noise = torch.ones(positions, policies, rows, first.shape[0], **where)
        self._drawn = torch.zeros(positions, policies, rows, dtype=torch.int64, **where)
        self._graph: torch.cuda.CUDAGraph | None = None

    def responses(self, asked: Sequence[Asked], width: int, new: int) -> list[torch.Tensor]:
        self._weights.copy(each.model for each in asked)
        self._begin(asked, width, new)
        for step in range(1, new):
            self._advance()
            if step % LOOK_EVERY == 0 and not self._running.any():
                break
        drawn = self._drawn[:new].permute(1, 2, 0).cpu()
        return [rows[:, : each.new_tokens].clone() for rows, each in zip(drawn, asked, strict=True)]

    def _begin(self, asked: Sequence[Asked], width: int, new: int) -> None:
        """Read the prompts, and draw the first token."""
        padded = [pad(each.prompts, (width - each.prompts.shape[1], 0)) for each in asked]
        attended = [pad(each.attended, (width - each.attended.shape[1], 0)) for each in asked]
        ids, known = (torch.stack(rows).to(self.device) for rows in (padded, attended))
        for i, each in enumerate(asked):
            generator = torch.Generator(self.device).manual_seed(each.seed)
            for step in range(new):  # a step at a time: the draws of a step do not depend on how many follow
                self._noise[step, i].exponential_(generator=generator)
            self._temperature[i] = each.temperature
        self._cache.zero_()  # what a diverged policy left is NaN, and 0 times NaN is NaN
        self._seen.zero_()
        self._seen[..., :width] = known.flatten(0, 1)[:, None, None].bool()
        self._running.fill_(True)
        self._drawn.fill_(self._pad)
        self._at.fill_(width - 1)
        self._step.zero_()
        places = (known.cumsum(-1) - 1).clamp(min=0)
        self._places.copy_(places[..., -1:])
        causal = torch.ones(width, self._positions, dtype=torch.bool, device=self.device).tril()
        itself = torch.eye(width, self._positions, dtype=torch.bool, device=self.device)  # padding has to see something
        x = self._states(ids, places, torch.arange(width, device=self.device), causal & self._seen | itself)
        self._pick(x[:, :, -1:])

    def _advance(self) -> None:
        if self.device.type != "cuda":
            return self._decode()
        if self._graph is None:
            self._graph = self._captured()
        self._graph.replay()

    def _captured(self) -> torch.cuda.CUDAGraph:
        # not the keys and values: the steps after this write their places again
        state = self._at, self._step, self._places, self._last, self._running, self._seen, self._drawn
        kept = [each.clone() for each in state]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries allocate in their first calls, which a graph must not hold
            for _ in range(_WARM):
                self._decode()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._decode()
        for each, before in zip(state, kept, strict=True):
            each.copy_(before)
        return graph

    def _decode(self) -> None:
        """Read the last token of each sequence and draw the next."""
        self._at += 1
        self._step += 1
        self._places += 1
        self._seen.index_fill_(-1, self._at, True)
        self._pick(self._states(self._last, self._places, self._at, self._seen))

    def _pick(self, x: torch.Tensor) -> None:
        """Draw a token of each sequence from the states (R, B, 1, d) of its last position."""
        w = self._weights
        logits = (_normed(x, w.final_norm, self._eps).flatten(1, 2) @ w.embedding.mT).float()  # (R, B, V)
        probabilities = (logits / self._temperature).softmax(-1)
        drawn = (probabilities / self._noise.index_select(0, self._step)[0]).argmax(-1, keepdim=True)
        drawn = torch.where(self._running, drawn, self._pad)
        self._running &= drawn != self._eos
        self._last.copy_(drawn)
        self._drawn.index_copy_(0, self._step, drawn.squeeze(-1)[None])

    def _states(self, ids: torch.Tensor, places: torch.Tensor, at: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Return the states (R, B, n, d) after the last layer, and keep keys and values.

        Args:
            ids: (R, B, n) int64.
            places: (R, B, n) int64, of the rotary embedding.
            at: (n,) int64, where keys and values go.
            seen: (R B, 1, n, S) bool, what each position attends to.
        """
        w, count = self._weights, ids.shape[-1]
        x = w.embedding[torch.arange(self._policies, device=self.device)[:, None, None], ids]
        angles = places.flatten(0, 1)[:, None, :, None].float() * self._frequencies
        cosines, sines = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        turn = torch.cat([cosines, cosines], -1), torch.cat([-sines, sines], -1)
        mask = torch.zeros(seen.shape, dtype=x.dtype, device=self.device).masked_fill_(~seen, -torch.inf)
        for layer, cache in zip(w.layers, self._cache, strict=True):
            h = _times(_normed(x, layer["norm"], self._eps), layer["qkv"], layer["qkv_bias"])
            h = h.view(self._policies * self._rows, count, 3, self._heads, -1).permute(2, 0, 3, 1, 4)  # 3, RB, H, n, D
            queries, keys = torch.addcmul(h[:2] * turn[0], h[:2].roll(h.shape[-1] // 2, -1), turn[1])  # rotated
            cache.index_copy_(3, at, torch.stack([keys, h[2]]))
            mixed = scaled_dot_product_attention(queries, *cache, attn_mask=mask)
            x = x + _times(mixed.transpose(1, 2).reshape(x.shape), layer["out"])
            gate, up = _times(_normed(x, layer["second_norm"], self._eps), layer["gate_up"]).chunk(2, -1)
            x = x + _times(silu(gate) * up, layer["down"])
        return x


@dataclass(frozen=True)
class _Shape:
    heads: int
    layers: int
    eps: float
    theta: float


def model_shape(model: torch.nn.Module) -> _Shape:
    """Return what the weights' own shapes do not say; ValueError for a model that the engine cannot decode."""
    config = model.config
    known = {"model_type": "qwen2", "tie_word_embeddings": True, "num_key_value_heads": config.num_attention_heads}
    other = [f"{name} {getattr(config, name)}" for name, value in known.items() if getattr(config, name) != value]
    if other:
        raise ValueError(f"lab.device: a policy with {', '.join(other)} runs on the CPU alone; use --device cpu")
    theta = config.rope_parameters["rope_theta"]
    return _Shape(config.num_attention_heads, config.num_hidden_layers, config.rms_norm_eps, theta)


class _Stacked:
    """The weights of R policies, one after another: matrices (R, in, out), vectors (R, 1, out)."""

    def __init__(self, model: torch.nn.Module, policies: int):
        def room(weights: Sequence[torch.Tensor]) -> torch.Tensor:
            first = weights[0]
            rows = sum(len(weight) for weight in weights)
            return first.new_empty(policies, rows, *first.shape[1:])

        named = dict(model.named_parameters())
        self._copies: list[tuple[torch.Tensor, list[str]]] = []

        def stack(names: list[str]) -> torch.Tensor:
            made = room([named[name] for name in names])
            self._copies.append((made, names))
            return made.mT if made.dim() == 3 else made[:, None]

        self.embedding = stack(["model.embed_tokens.weight"]).mT
        self.final_norm = stack(["model.norm.weight"])
        self.layers = []
        for i in range(model_shape(model).layers):
            layer = {}
            for part, modules in _PARTS.items():
                names = [f"model.layers.{i}.{module}" for module in modules]
                layer[part] = stack([f"{name}.weight" for name in names])
                if f"{names[0]}.bias" in named:
                    layer[f"{part}_bias"] = stack([f"{name}.bias" for name in names])
            self.layers.append(layer)

    def copy(self, models: Iterable[torch.nn.Module]) -> None:
        targets, sources = [], []
        for i, model in enumerate(models):
            named = dict(model.named_parameters())
            for stacked, names in self._copies:
                weights = [named[name].detach() for name in names]
                targets += stacked[i].split([len(weight) for weight in weights])
                sources += weights
        torch._foreach_copy_(targets, sources)


def _times(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply (R, B, n, in) by (R, in, out)."""
    flat = x.flatten(1, 2)
    made = flat @ matrix if bias is None else torch.baddbmm(bias, flat, matrix)
    return made.unflatten(1, x.shape[1:3])


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm of (R, B, n, d) with weights (R, 1, d); torch rounds it before the weights, as Qwen2 does."""
    return rms_norm(x, x.shape[-1:], eps=eps) * weight[:, None]
