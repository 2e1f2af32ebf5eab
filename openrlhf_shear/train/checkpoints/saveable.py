"""Whether a model can be saved, checked before the first step; the error of a disk that refuses it."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import torch
from openrlhf.utils.logging_utils import init_logger
from peft import PeftModel

from openrlhf_shear.train.screen.outcome import ModelNotWrittenError, RefusedError

logger = init_logger(__name__)


def without_adapters(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model below LoRA's adapters, or `model` itself."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


@contextmanager
def model_written(ckpt: Namespace) -> Iterator[None]:
    """Name the remedy if the disk refuses a trained model inside the context.

    Args:
        ckpt: the flags `--ckpt.*`.

    Raises:
        ModelNotWrittenError: an OSError occurred.
    """
    try:
        yield
    except OSError as error:
        again = "the same line with --ckpt.load_enable writes it from the last checkpoint"
        remedy = f"make room, then {again}" if ckpt.save_steps > 0 else "no checkpoint was made (--ckpt.save_steps)"
        message = f"the model could not be written to --ckpt.output_dir: {error}"
        raise ModelNotWrittenError(f"{message}; {remedy}") from error


def repair_generation(model: torch.nn.Module) -> str:
    """Set `do_sample` if the generation config has sampling flags without it, which transformers refuses to write.

    An example of such a flag is temperature 0.6. Returns transformers' message in a line; "" if there was nothing to
    repair, or if `do_sample` does not help.
    """
    generation = without_adapters(model).generation_config if without_adapters(model).can_generate() else None
    if generation is None or generation.do_sample or not (problem := _refusal(generation)):
        return ""
    before, generation.do_sample = generation.do_sample, True
    if _refusal(generation):
        generation.do_sample = before
        return ""
    return problem


def refuse_unsaveable(flag: str, model: torch.nn.Module, tokenizer) -> None:
    """Check that a model's files beside its weights can be saved, by saving them to a temporary folder.

    Args:
        flag: the flag that named the model.
        model: the model, with or without adapters.
        tokenizer: its tokenizer.

    Raises:
        RefusedError: transformers refuses one of them.
    """
    if problem := repair_generation(model):
        logger.warning(f"{flag}: saved models get do_sample true in generation_config.json: {problem}")
    base = without_adapters(model)
    parts = [("config.json", base.config), ("tokenizer", tokenizer)]
    if base.can_generate():
        parts.append(("generation_config.json", base.generation_config))
    if isinstance(model, PeftModel):
        parts += [("adapter_config.json", adapters) for adapters in model.peft_config.values()]
    for name, part in parts:
        if problem := _refusal(part):
            raise RefusedError(
                f"{flag} has a {name} that can be loaded and cannot be saved ({problem}); use a corrected copy"
            )


def _refusal(part) -> str:
    """Return why `save_pretrained` refuses a part of a model; "" if it does not."""
    with TemporaryDirectory() as folder:
        try:
            part.save_pretrained(folder)
        except Exception as error:  # a faulty file can raise anything
            lines = str(error).splitlines()[:2]  # transformers puts the cause into the second
            return f"{type(error).__name__}: {' '.join(line.strip('- ') for line in lines)}"
    return ""
