"""A small random Qwen2.5-VL with its processor, pictures for it, and a task on them: which colour is it?

`save_model` needs no torchvision; to load the processor does.
"""

import functools
import json
import tempfile
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoTokenizer, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

import openrlhf_shear.tasks.arithmetic

SIDE, PATCH, MERGE = 56, 14, 2  # pixels of a picture's side, and of a patch's; a token has MERGE x MERGE patches
PATCHES = (SIDE // PATCH) ** 2
MEAN, STD = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)  # of the three channels, subtracted and divided by
COLOURS = {"a": (230, 30, 20), "b": (20, 200, 40), "c": (40, 60, 240), "d": (240, 230, 30)}
SPECIAL = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"  # in a prompt
PICTURE_READ = PICTURE.replace("<|image_pad|>", "<|image_pad|>" * (PATCHES // MERGE**2))  # as the model reads it
_TOKENIZER = Path(openrlhf_shear.tasks.arithmetic.__file__).parent / "shipped_policy"
_CONSTANT, _NEVER = 8.0, -8.0


def save_model(folder: Path, seed: int = 0) -> Path:
    """Save a model of 0.2 million parameters that sees, and its processor; return the folder."""
    tokenizer = AutoTokenizer.from_pretrained(_TOKENIZER)
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    ids = dict(zip(SPECIAL, tokenizer.convert_tokens_to_ids(SPECIAL), strict=True))
    text = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    text |= {"num_key_value_heads": 1, "vocab_size": len(tokenizer), "initializer_range": 0.2}
    text |= {"max_position_embeddings": 512, "tie_word_embeddings": False, "use_sliding_window": False}
    text |= {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    text["rope_parameters"] = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1e4}
    sight = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
    sight |= {"patch_size": PATCH, "spatial_merge_size": MERGE, "window_size": PATCH * MERGE}
    sight |= {"fullatt_block_indexes": [1], "initializer_range": 0.2}
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=sight,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = Qwen2_5_VLForConditionalGeneration(config).bfloat16()
    _never_draw(model, [*ids.values(), tokenizer.pad_token_id])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    pixels = {"min_pixels": SIDE**2, "max_pixels": SIDE**2, "image_mean": MEAN, "image_std": STD}
    pixels |= {"patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": 2}
    processors = {"preprocessor_config": "image_processor_type", "video_preprocessor_config": "video_processor_type"}
    for file, kind in processors.items():
        name = "Qwen2VLImageProcessor" if file == "preprocessor_config" else "Qwen2VLVideoProcessor"
        content = pixels | {kind: name, "processor_class": "Qwen2_5_VLProcessor"}
        (folder / f"{file}.json").write_text(json.dumps(content))
    return folder


@functools.cache
def saved() -> Path:
    """Return a folder with the model, which goes when this process ends."""
    return save_model(Path(_folder().name))


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory()


@functools.cache
def _image_token() -> int:
    return json.loads((saved() / "config.json").read_text())["image_token_id"]


def is_image(tokens: torch.Tensor) -> torch.Tensor:
    """Return (T,) 1 where a token stands for a part of a picture, else 0."""
    return (tokens == _image_token()).int()


@torch.no_grad()
def _never_draw(model: Qwen2_5_VLForConditionalGeneration, tokens: list[int]) -> None:
    """Keep one dimension of the residual stream constant, and let the LM head turn it against `tokens`.

    A model that has learnt to read draws no image token; with random weights one in a few rollouts would.
    """
    inner = model.model.language_model
    inner.embed_tokens.weight[:, 0] = _CONSTANT
    merger = model.model.visual.merger.mlp[2]
    merger.weight[0], merger.bias[0] = 0, _CONSTANT
    for layer in inner.layers:
        layer.self_attn.o_proj.weight[0] = layer.mlp.down_proj.weight[0] = 0
    model.lm_head.weight[:, 0] = 0
    model.lm_head.weight[tokens, 0] = _NEVER


def save_picture(colour: str, folder: Path) -> Path:
    """Save a picture of one colour, and return its file."""
    file = folder / f"{colour}.png"
    Image.new("RGB", (SIDE, SIDE), COLOURS[colour]).save(file)
    return file


def pixels(colour: str) -> dict[str, torch.Tensor]:
    """Return what the processor makes of that picture, computed here: (patches, channels * 2 * side * side)."""
    channels = [(value / 255 - mean) / std for value, mean, std in zip(COLOURS[colour], MEAN, STD, strict=True)]
    patch = torch.tensor(channels).repeat_interleave(2 * PATCH**2)  # two frames
    side = SIDE // PATCH
    return {"pixel_values": patch.expand(PATCHES, -1).clone(), "image_grid_thw": torch.tensor([[1, side, side]])}


def write_dataset(file: Path, count: int) -> None:
    """Write rows with a prompt, a picture and its colour's letter; pictures go next to the file."""
    letters = list(COLOURS)
    files = {letter: str(save_picture(letter, file.parent)) for letter in letters}
    rows = [(f"{PICTURE}{number}=", letters[number % len(letters)]) for number in range(count)]
    lines = [json.dumps({"prompt": text, "answer": letter, "images": [files[letter]]}) for text, letter in rows]
    file.write_text("\n".join(lines) + "\n")
