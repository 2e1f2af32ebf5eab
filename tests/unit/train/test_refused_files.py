"""A disk that fills while a checkpoint is written costs that checkpoint; no rank leaves the others at a barrier."""

import json
import subprocess
import sys

import gradients
import pytest
from ranks import run_ranks

from openrlhf_shear.tasks.arithmetic.problems import write_dataset
from openrlhf_shear.train.checkpoints import folders, saveable

# A limit on the size of files refuses writes as a full disk does. DeepSpeed's own writer of files.
FULL = """
import resource, sys
from pathlib import Path
from types import SimpleNamespace
import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from openrlhf_shear.train.checkpoints import saveable

zipped, folder = sys.argv[1] == "zip", Path(sys.argv[2])
writer = TorchCheckpointEngine()
writer.zipfile_serialization = zipped
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
reached = []

def save_checkpoint(save_dir, tag, client_state, save_latest):
    for size in (10, 10**6, 20):
        engine.checkpoint_engine.save({"a": torch.zeros(size)}, f"{save_dir}/{tag}/{size}.pt")
    reached.append("the barrier")

engine = SimpleNamespace(checkpoint_engine=writer, save_checkpoint=save_checkpoint)
extra = lambda aside: torch.save(torch.zeros(30), aside / "ema.pt")
try:
    saveable.save(engine, folder, {}, extra)
except OSError as error:
    print(error)
assert reached and engine.checkpoint_engine is writer
assert all((folder / name).is_file() for name in ("10.pt", "20.pt", "ema.pt"))
"""


@pytest.mark.parametrize("form", ["zip", "older"])
def test_a_refused_file_is_told_after_all_others_are_written(tmp_path, form):
    folder = tmp_path / "global_step2.partial"
    folder.mkdir()
    done = subprocess.run([sys.executable, "-c", FULL, form, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (told,) = [line for line in done.stdout.splitlines() if line.startswith(str(folder))]
    assert told.startswith(f"{folder}/1000000.pt could not be written (") and told.endswith(" GB left")


def test_an_error_of_something_else_is_raised(tmp_path):
    with pytest.raises(RuntimeError, match="CUDA error"), saveable.noted([], tmp_path / "a.pt"):
        raise RuntimeError("CUDA error: out of memory")


def test_what_was_written_of_a_refused_checkpoint_is_removed(tmp_path):
    folder = tmp_path / "global_step2.partial"
    folder.mkdir()
    with pytest.raises(KeyError), saveable.removed(folder):
        raise KeyError
    assert folder.is_dir()
    with pytest.raises(folders.NotSavedError), saveable.removed(folder):
        raise folders.NotSavedError
    assert not folder.exists()


def test_the_full_disk_of_one_rank_is_told_by_all_ranks_and_the_next_save_works(tmp_path):
    """The first rank would wait at DeepSpeed's barrier for ever."""
    write_dataset(tmp_path / "train.jsonl", 16, seed=0)
    line = gradients.line(gradients.Row("full", "--ds.zero_stage 2 --train.batch_size 4", ranks=2), tmp_path)
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(gradients.measure.free_port())}
    asked = {"line": [*line, "--ckpt.path", str(tmp_path / "ckpt")], "environment": where}
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    run_ranks("refused_rank", 2, tmp_path)
    for rank in (0, 1):
        said, kept = json.loads((tmp_path / f"said{rank}.json").read_text())
        of_second, of_first = said
        assert "rank_1_mp_rank_00_optim_states.pt could not be written (" in of_second, "the second rank's file"
        assert "global_step2_hf.partial could not be written (" in of_first, "a model, which the first rank writes"
        assert kept == [[], [], ["_actor/global_step3", "global_step3_hf"]]
    assert folders.names(tmp_path / "ckpt" / "_actor") == ["global_step3"]
    assert (tmp_path / "ckpt" / "global_step3_hf" / "model.safetensors").is_file()
