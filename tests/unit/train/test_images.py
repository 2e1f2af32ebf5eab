"""Prompts with images: the policy's side of credit, on a small random Qwen2.5-VL in OpenRLHF's own `Actor`.

`tests/distributed/test_vision.py` has whole runs.
"""

import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import openrlhf_on_cpu  # noqa: F401
import pytest
import torch
import vision
from openrlhf.models import Actor
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.vlm_utils import merge_mm_train_inputs
from transformers import AutoTokenizer

import openrlhf_shear
from openrlhf_shear.credit.captured import captured_entropies, captured_lm_head_input, response_states
from openrlhf_shear.line.run import Run
from openrlhf_shear.train.cpu import torchvision_names
from openrlhf_shear.train.experience.fillers import shared_out
from openrlhf_shear.train.screen.outcome import RefusedError
from openrlhf_shear.train.start import launch

TORCHVISION = Path(sys.prefix) / "torchvision"
PAD = 0
# Prints what the processor makes of a picture, and of a prompt with one.
PROCESS = """
import sys, torch, vision
from pathlib import Path
from transformers import AutoProcessor
processor = AutoProcessor.from_pretrained(vision.saved())
from PIL import Image
picture = Image.open(vision.save_picture("c", Path(sys.argv[1])))
made = processor(text=[f"{vision.PICTURE}12="], images=[picture], return_tensors="pt")
text = processor.tokenizer.decode(made["input_ids"][0])
torch.save({"text": text, **{name: made[name] for name in ("pixel_values", "image_grid_thw")}}, sys.argv[2])
"""


@pytest.fixture(scope="module")
def actor() -> Actor:
    actor = Actor(str(vision.saved()), attn_implementation="sdpa", param_dtype="bf16").float().eval()
    assert actor.is_vlm
    return actor


def rollout(seed: int, prompt: int, response: int, seen: bool = True) -> Experience:
    """One rollout: an image where `seen`, `prompt` more tokens, and `response` tokens; as it was sampled."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, 30, (prompt + response,), generator=generator)
    if seen:
        picture = AutoTokenizer.from_pretrained(vision.saved())(vision.PICTURE_READ, return_tensors="pt")["input_ids"]
        tokens = torch.cat([picture[0], tokens])
    pixels = vision.pixels("a")
    pixels["pixel_values"] = torch.randn(pixels["pixel_values"].shape, generator=generator)
    mask = torch.zeros(len(tokens) - 1)
    mask[-response:] = 1
    return Experience(
        sequences=tokens[None],
        attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
        action_mask=mask[None],
        index=[seed],
        images=["a.png" if seen else None],
        mm_train_inputs=[pixels if seen else None],
        total_length=torch.tensor([float(len(tokens))]),
        info={},
    )


def states(actor: Actor, batch: Experience) -> list[torch.Tensor]:
    """As `ReadsStates` takes them."""
    inputs = merge_mm_train_inputs([batch.mm_train_inputs], "cpu")
    with torch.no_grad(), captured_lm_head_input(actor.model) as captured, captured_entropies(actor) as entropies:
        actor(batch.sequences, batch.action_mask, batch.attention_mask, **inputs)
    assert len(captured) == len(entropies) == 1
    return response_states(captured[0], batch.attention_mask, batch.action_mask, packed=False)


def test_states_of_a_batch_with_images_are_those_of_each_rollout_in_float64(actor):
    rows = [rollout(1, 3, 6), rollout(2, 5, 9), rollout(3, 4, 5, seen=False)]
    found = states(actor, Experience.concat_experiences(rows, PAD))
    double = actor.model.double()
    try:
        for row, got in zip(rows, found, strict=True):
            inputs = {
                name: value.double() if value.is_floating_point() else value
                for name, value in (row.mm_train_inputs[0] or {}).items()
            }
            if inputs:
                inputs["mm_token_type_ids"] = vision.is_image(row.sequences)
            with torch.no_grad():
                exact = double.model(input_ids=row.sequences, attention_mask=row.attention_mask, **inputs)
            response = int(row.action_mask.sum())
            # float32 through two layers of 64: some hundred roundings of states of about 1.
            torch.testing.assert_close(got.double(), exact.last_hidden_state[0, -response:], rtol=0, atol=1e-5)
    finally:
        actor.model.float()


def test_a_filler_sees_what_its_row_saw(actor):
    """With ZeRO-3 every rank has to run the same modules, the ones that see as well."""
    rows = [rollout(1, 3, 6), rollout(2, 5, 9), rollout(4, 2, 3)]
    pieces = shared_out(rows, batch=4, micro_batch=1, ranks=[1], pad_token=PAD, dynamic=False)
    assert len(pieces) == 4 and [bool(piece.info["filler"].item()) for piece in pieces] == [False] * 3 + [True]
    filler = pieces[-1]
    assert filler.mm_train_inputs[0] is not None and filler.action_mask.sum() == 0 and filler.index == [-1]
    assert states(actor, filler)[0].shape == (0, 64)


@pytest.mark.skipif(not TORCHVISION.is_dir(), reason="scripts/setup_tests.sh installs torchvision")
def test_the_processor_works_with_the_wheel_for_cuda(tmp_path):
    """In another process, as vLLM starts some: with the operators' names it makes the pixels that `vision` has."""

    def process(folder: Path) -> subprocess.CompletedProcess:
        code = (Path(vision.__file__).parent, Path(openrlhf_shear.__file__).parents[1])
        paths = os.pathsep.join(map(str, (folder, *code)))
        command = [sys.executable, "-c", PROCESS, tmp_path, tmp_path / "made.pt"]
        return subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)

    bare = tmp_path / "bare"
    bare.mkdir()
    for part in TORCHVISION.glob("torchvision*"):
        (bare / part.name).symlink_to(part)
    assert "torchvision::nms does not exist" in process(bare).stderr, "or the names are no longer needed"
    done = process(TORCHVISION)
    assert done.returncode == 0, done.stderr
    made = torch.load(tmp_path / "made.pt")
    assert made["text"] == f"{vision.PICTURE_READ}12="
    for name, value in vision.pixels("c").items():
        torch.testing.assert_close(made[name], value)


@pytest.mark.parametrize("whole", [True, False])
def test_a_build_with_its_operators_is_left_alone(monkeypatch, whole):
    defined = []
    monkeypatch.setattr(torchvision_names, "_define", lambda: defined.append(True))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setitem(sys.modules, "torchvision.extension", Namespace(_has_ops=lambda: whole))
    torchvision_names.install()
    torchvision_names.install()
    for name in ("torchvision", "torchvision._meta_registrations"):
        assert sys.meta_path[0].find_spec(name, None) is None
    assert defined == [True] * (not whole)
    assert sum(type(finder).__name__ == "_Finder" for finder in sys.meta_path) == 1, "installed once"


@pytest.mark.parametrize("installed", [True, False])
def test_images_on_the_cpu_need_torchvision(monkeypatch, tmp_path, installed):
    class StartedError(Exception):
        pass

    def start(*of):
        raise StartedError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch.cluster, "gpus_needed", start)
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision") if installed else None)
    options = {"device": "cpu", "data.max_images_per_prompt": 1, "credit": None}
    options |= {"actor.model_name_or_path": None, "use_ms": False}
    refused = pytest.raises(RefusedError, match=r"needs torchvision: .*; run scripts/setup_tests\.sh")
    with pytest.raises(StartedError) if installed else refused:
        launch.launch(Run(options), Namespace())
