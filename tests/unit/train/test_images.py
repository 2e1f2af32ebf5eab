"""Prompts with images: the policy's side of credit, on a small random Qwen2.5-VL in OpenRLHF's own `Actor`.

No test samples such prompts: vLLM's vision models import torchvision.
"""

from argparse import Namespace

import openrlhf_on_cpu  # noqa: F401
import pytest
import torch
from openrlhf.models import Actor
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.vlm_utils import merge_mm_train_inputs
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from openrlhf_shear.credit.captured import captured_entropies, captured_lm_head_input, response_states
from openrlhf_shear.line.run import Run
from openrlhf_shear.train.experience.fillers import shared_out
from openrlhf_shear.train.screen.outcome import RefusedError
from openrlhf_shear.train.start import launch

PAD, IMAGE, START = 0, 5, 6
PATCHES = 16  # of an image; four of them are one token


@pytest.fixture(scope="module")
def actor(tmp_path_factory) -> Actor:
    text = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text |= {"num_key_value_heads": 1, "vocab_size": 40, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2}
    text["rope_parameters"] = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32}
    vision |= {"patch_size": 4, "window_size": 16, "fullatt_block_indexes": [0]}
    special = {"image_token_id": IMAGE, "vision_start_token_id": START, "video_token_id": 7, "vision_end_token_id": 8}
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision, **special))
    folder = tmp_path_factory.mktemp("vlm")
    model.save_pretrained(folder)
    actor = Actor(str(folder), attn_implementation="sdpa", param_dtype="bf16").float().eval()
    assert actor.is_vlm
    return actor


def rollout(seed: int, prompt: int, response: int, seen: bool = True) -> Experience:
    """One rollout: an image where `seen`, `prompt` more tokens, and `response` tokens; as it was sampled."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(10, 40, (prompt + response,), generator=generator)
    tokens = torch.cat([torch.tensor([START] + [IMAGE] * (PATCHES // 4) + [8]), words]) if seen else words
    pixels = {
        "pixel_values": torch.randn(PATCHES, 3 * 2 * 4 * 4, generator=generator),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
    }
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
                inputs["mm_token_type_ids"] = (row.sequences == IMAGE).int()
            with torch.no_grad():
                exact = double.model(input_ids=row.sequences, attention_mask=row.attention_mask, **inputs)
            response = int(row.action_mask.sum())
            # float32 through two layers of 32: some hundred roundings of states of about 1.
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
    assert states(actor, filler)[0].shape == (0, 32)


def test_images_are_refused_on_the_cpu_before_ray_starts(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch.cluster, "join_on_cpu", lambda *of: pytest.fail("Ray was started"))
    options = {"device": "cpu", "data.max_images_per_prompt": 1, "credit": None}
    with pytest.raises(RefusedError, match="max_images_per_prompt needs a GPU: vLLM"):
        launch.launch(Run(options), Namespace())
