"""One rank of two that save checkpoints while the disk of the second is full, then that of the first, then none."""

import json
import os
import resource
from pathlib import Path

from gradient_worker import built
from openrlhf.utils.config import hierarchize

from openrlhf_shear.cli.train_ppo_ray import parse
from openrlhf_shear.train import hooks
from openrlhf_shear.train.carriers import Save
from openrlhf_shear.train.checkpoints.folders import NotSavedError
from openrlhf_shear.train.cpu import backend as cpu_backend
from openrlhf_shear.train.start import launch


def main(rank: int, ranks: int, folder: Path) -> None:
    asked = json.loads((folder / "asked.json").read_text())
    os.environ.update(asked["environment"], LOCAL_RANK="0", RANK=str(rank), WORLD_SIZE=str(ranks))
    launch.install_hooks(cpu_backend.MIXINS)
    args = hierarchize(parse(asked["line"]))
    args.offload, args.upstream, args.probed = False, False, True
    said, kept = [], []
    with hooks.RING_ATTENTION.held(hooks.RING_ATTENTION.get()):
        actor, _ = built("policy", args, rank, ranks)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        for step, (full, model) in enumerate([(1, False), (0, True), (None, True)], 1):
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096 if rank == full else hard, hard))
            try:
                actor.save_checkpoint(Save(step, checkpoint=True, model=model), {"global_step": step})
            except NotSavedError as error:
                said.append(str(error))
            of_step = Path(args.ckpt.path).glob(f"**/global_step{step}*")
            kept.append(sorted(str(path.relative_to(args.ckpt.path)) for path in of_step))
    (folder / f"said{rank}.json").write_text(json.dumps([said, kept]))
