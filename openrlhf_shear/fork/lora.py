"""LoRA: adapters are merged on the way out, to the engines and into saved models, which know nothing of them.

OpenRLHF trains B and A of W x + s B A x beside a frozen W, and would send vLLM what PEFT calls them
(`base_model.model. ... .q_proj.base_layer.weight`, `.q_proj.lora_A.default.weight`), which vLLM refuses. Here W + s B A
goes as `... .q_proj.weight`, and no adapter by itself. The sum is made in float32, rounded once, beside W: a W that is
added to and subtracted from in bfloat16 would not be the W of before.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import deepspeed
import torch
from peft import PeftModel
from peft.tuners.lora import Linear, LoraLayer

from openrlhf_shear.fork import hooks
from openrlhf_shear.fork.outcome import RefusedError

ADAPTER = "adapter"  # the folder of the adapters alone, in that of a saved model
_WRAPPED = ".base_layer."  # PEFT's, in the name of a base weight


def refuse_unmergeable(model: torch.nn.Module) -> None:
    """Raises RefusedError: the model has adapters that are no matrices beside a matrix of their own."""
    tied = _tied(model)
    for name, layer in model.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        if type(layer) is not Linear or layer.lora_variant:
            why = f"is no linear layer but {type(layer.get_base_layer()).__name__}, which is not merged for vLLM"
        elif layer.get_base_layer().weight in tied:
            why = "shares its weights with another layer, which would change with it in vLLM but not in training"
        else:
            continue
        raise RefusedError(f"--ds.lora.target_modules: {name} {why}; name others, or leave the flag out (all-linear)")


def _tied(model: torch.nn.Module) -> set[torch.nn.Parameter]:
    """Parameters that have several names."""
    seen: set[torch.nn.Parameter] = set()
    return {one for _, one in model.named_parameters(remove_duplicate=False) if one in seen or seen.add(one)}


@contextmanager
def merged(model: torch.nn.Module) -> Iterator[None]:
    """While open, a model with adapters looks like the one without that does the same, for those who go through its
    `named_parameters` and read each one in `deepspeed.zero.GatheredParameters`: upstream's ways to vLLM, and `whole`.

    In there the `data` of a base weight is a new tensor, the merged one; under ZeRO-3 adapters are gathered with it.
    A model without adapters is left alone.
    """
    if not isinstance(model, PeftModel):
        yield
        return
    base = model.get_base_model()
    layers = {layer.get_base_layer().weight: layer for layer in base.modules() if isinstance(layer, LoraLayer)}
    known = {parameter for layer in layers.values() for parameter in layer.parameters()}
    adapters = known - {one for layer in layers.values() for one in layer.get_base_layer().parameters()}

    def named_parameters(remove_duplicate: bool = True) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for name, parameter in base.named_parameters(remove_duplicate=remove_duplicate):
            if parameter not in adapters:
                yield name.replace(_WRAPPED, "."), parameter

    @contextmanager
    def gathered(parameters: list[torch.nn.Parameter], **options) -> Iterator[None]:
        adapted = [layers[parameter] for parameter in parameters if parameter in layers]
        with ExitStack() as stack:
            needed = [*parameters, *(one for layer in adapted for one in layer.parameters())]
            stack.enter_context(upstream(needed, **options))
            for layer in adapted:
                stack.enter_context(_in_place(layer))
            yield

    model.named_parameters = named_parameters  # hooks.ON_OBJECTS
    try:
        with hooks.GATHERED.held(gathered) as upstream:
            yield
    finally:
        del model.named_parameters


@contextmanager
def _in_place(layer: Linear) -> Iterator[None]:
    weight = layer.get_base_layer().weight
    own, weight.data = weight.data, merged_weight(layer)
    try:
        yield
    finally:
        weight.data = own


@torch.no_grad()
def merged_weight(layer: Linear) -> torch.Tensor:
    """W + s B A, with the shape and dtype of W; s is alpha / r, or PEFT's other choices."""
    weight = layer.get_base_layer().weight.data
    total = weight.float()
    for name in layer.active_adapters:
        left, right = layer.lora_B[name].weight.float(), layer.lora_A[name].weight.float()
        if layer.fan_in_fan_out:  # GPT-2's layers keep the transpose
            left, right = right.T, left.T
        total = torch.addmm(total, left, right, alpha=layer.scaling[name])
    return total.to(weight.dtype)


def whole(
    model: torch.nn.Module,
    gathered: Callable[[torch.nn.Parameter], AbstractContextManager],
    remove_duplicate: bool = True,
) -> dict[str, torch.Tensor]:
    """Copies of a model's parameters on the CPU of rank 0, none elsewhere; every rank calls this.

    Args:
        gathered: within what it makes, a parameter is not shared out over ranks.
        remove_duplicate: tied weights once, by the first of their names.
    """
    copies = {}
    for name, parameter in model.named_parameters(remove_duplicate=remove_duplicate):
        with gathered(parameter):
            if _is_first_rank():
                copies[name] = parameter.data.to("cpu", copy=True)
    return copies


def gathering(sharded: bool) -> Callable[[torch.nn.Parameter], AbstractContextManager]:
    """For `whole`; `sharded`: under ZeRO-3."""
    return lambda parameter: deepspeed.zero.GatheredParameters([parameter], enabled=sharded)


def save_merged(model: PeftModel, folder: str, sharded: bool) -> None:
    """Write the model without adapters that does the same, as Hugging Face's; every rank calls this."""
    with merged(model):
        weights = whole(model, gathering(sharded))
    if _is_first_rank():
        base = model.get_base_model()
        names = {name for name, _ in base.named_parameters(remove_duplicate=False)}
        buffers = {name: value for name, value in base.state_dict().items() if name not in names}
        base.save_pretrained(folder, state_dict=weights | buffers)


def _is_first_rank() -> bool:
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
