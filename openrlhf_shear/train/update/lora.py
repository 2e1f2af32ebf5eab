"""Merge of LoRA adapters into the weights that go to the engines and into saved models.

OpenRLHF trains B and A of W x + s B A x beside a frozen W. It would send vLLM PEFT's names, which vLLM refuses
(`base_model.model. ... .q_proj.base_layer.weight`, `.q_proj.lora_A.default.weight`). Here W + s B A is sent as
`... .q_proj.weight`, and no adapter separately. The sum is a new tensor, computed in float32 and rounded once: adding
to W and subtracting again in bfloat16 would not restore W.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import deepspeed
import torch
from peft import PeftModel
from peft.tuners.lora import Linear, LoraLayer

from openrlhf_shear.train import hooks
from openrlhf_shear.train.screen.outcome import RefusedError

ADAPTER = "adapter"  # subfolder of a saved model with the adapters alone
_WRAPPED = ".base_layer."  # part that PEFT inserts into the name of a base weight


def refuse_unmergeable(model: torch.nn.Module) -> None:
    """Check that every adapter can be merged into a weight that no other layer shares.

    Raises:
        RefusedError: an adapter is not on a linear layer, or its weight is tied to another.
    """
    seen: set[torch.nn.Parameter] = set()
    parameters = [parameter for _, parameter in model.named_parameters(remove_duplicate=False)]
    tied = {parameter for parameter in parameters if parameter in seen or seen.add(parameter)}
    for name, layer in model.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        if type(layer) is not Linear or layer.lora_variant:
            why = f"is no linear layer but {type(layer.get_base_layer()).__name__}, which is not merged for vLLM"
        elif layer.get_base_layer().weight in tied:
            why = "shares its weights with another layer, which would change with it in vLLM but not in training"
        else:
            continue
        raise RefusedError(f"--ds.lora.target_modules: {name} {why}; name other modules, or omit the flag (all-linear)")


@contextmanager
def merged(model: torch.nn.Module) -> Iterator[None]:
    """Make a model with adapters look like the equivalent model without them, inside the context.

    This works for code that loops over `named_parameters` and reads each parameter in
    `deepspeed.zero.GatheredParameters`: upstream's ways to vLLM, and `whole`. There, the `data` of a base weight is a
    new, merged tensor; under ZeRO-3 its adapters are gathered with it. A model without adapters does not change.
    """
    if not isinstance(model, PeftModel):
        yield
        return
    base = model.get_base_model()
    layers = {layer.get_base_layer().weight: layer for layer in base.modules() if isinstance(layer, LoraLayer)}
    known = {parameter for layer in layers.values() for parameter in layer.parameters()}
    adapters = known - {weight for layer in layers.values() for weight in layer.get_base_layer().parameters()}

    def named_parameters(remove_duplicate: bool = True) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for name, parameter in base.named_parameters(remove_duplicate=remove_duplicate):
            if parameter not in adapters:
                yield name.replace(_WRAPPED, "."), parameter

    @contextmanager
    def gathered(parameters: list[torch.nn.Parameter], **options) -> Iterator[None]:
        adapted = [layers[parameter] for parameter in parameters if parameter in layers]
        with ExitStack() as stack:
            needed = [*parameters, *(parameter for layer in adapted for parameter in layer.parameters())]
            stack.enter_context(upstream(needed, **options))
            for layer in adapted:
                weight = layer.get_base_layer().weight
                stack.callback(setattr, weight, "data", weight.data)
                weight.data = merged_weight(layer)
            yield

    model.named_parameters = named_parameters  # hooks.ON_OBJECTS
    try:
        with hooks.GATHERED.held(gathered) as upstream:
            yield
    finally:
        del model.named_parameters


@torch.no_grad()
def merged_weight(layer: Linear) -> torch.Tensor:
    """Return W + s B A, with the shape and dtype of W; s is alpha / r, or another choice of PEFT."""
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
    """Return copies of a model's parameters, by name, on the CPU of rank 0, and none elsewhere; every rank calls this.

    Args:
        model: the model.
        gathered: makes a context in which a parameter is gathered from all ranks.
        remove_duplicate: whether tied weights appear once, under the first of their names.
    """
    copies = {}
    for name, parameter in model.named_parameters(remove_duplicate=remove_duplicate):
        with gathered(parameter):
            if _is_first_rank():
                copies[name] = parameter.data.to("cpu", copy=True)
    return copies


def gathering(sharded: bool) -> Callable[[torch.nn.Parameter], AbstractContextManager]:
    """Return the `gathered` argument of `whole`; `sharded` is whether the model is under ZeRO-3."""
    return lambda parameter: deepspeed.zero.GatheredParameters([parameter], enabled=sharded)


def save_merged(model: PeftModel, folder: str, sharded: bool) -> None:
    """Save the equivalent model without adapters in Hugging Face's format; every rank calls this."""
    with merged(model):
        weights = whole(model, gathering(sharded))
    if _is_first_rank():
        base = model.get_base_model()
        names = {name for name, _ in base.named_parameters(remove_duplicate=False)}
        buffers = {name: value for name, value in base.state_dict().items() if name not in names}
        base.save_pretrained(folder, state_dict=weights | buffers)


def _is_first_rank() -> bool:
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
