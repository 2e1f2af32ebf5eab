"""Names and shapes of a policy's weights against its architecture's own, before Ray starts.

transformers loads weights whose names it does not know without an error, and leaves its own random.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from openrlhf_shear.config.refusal import Refusal, refusal
from openrlhf_shear.preflight.models import DAMAGED, ModelFiles, headers

_NAMES = 3  # shown of a list of tensors


def against_architecture(model: ModelFiles) -> Iterator[Refusal]:
    """Compare names and shapes of a policy's headers with the architecture's own, made without memory (meta device).

    It imports torch and transformers: a job does it before it starts Ray. Models whose weights transformers renames are
    left out.
    """
    flag, name = model.flag, model.name
    if not (name and os.path.isdir(name)) or model.own_code or not (tensors := headers(Path(name))):
        return
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    known = AutoConfig.from_pretrained(name)
    if hasattr(known, "vision_config") or get_checkpoint_conversion_mapping(known.model_type):
        return
    if type(known) not in AutoModelForCausalLM._model_mapping:
        return
    with torch.device("meta"):
        own = AutoModelForCausalLM.from_config(known)
    tied = set(own._tied_weights_keys or ()) if known.tie_word_embeddings else set()
    prefix = f"{own.base_model_prefix}."
    expected = {each: tuple(tensor.shape) for each, tensor in own.state_dict().items() if each not in tied}
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
        yield refusal(flag, f"has {len(wrong)} weights of another shape: {wrong[0]} has {shapes}", name, DAMAGED)


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMES]) + (", ..." if len(names) > _NAMES else "")
