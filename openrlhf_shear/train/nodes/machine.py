"""Number of GPUs that a run could use, found before Ray starts."""

import json
import os
import subprocess
import sys

from openrlhf_shear.config.refusal import LineError
from openrlhf_shear.doctor import gpu
from openrlhf_shear.train.screen.outcome import RefusedError

_UPSTREAM = 8  # GPUs assumed on an unseen node, as in OpenRLHF
_ASK = """
import json, ray
ray.init(log_to_driver=False, logging_level="ERROR")
gpus = [node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]]
print(json.dumps([count for count in gpus if count]))
"""


def shape(device: str, device_memory: float) -> tuple[int, int, bool]:
    """Return the number of nodes, the GPUs per node, and whether they are logical GPUs of a CPU machine.

    They are those of the cluster at RAY_ADDRESS, else of this machine. A plan for GPUs elsewhere (`--device_memory`)
    gets a node with 8 GPUs.

    Raises:
        LineError: nothing answers at RAY_ADDRESS.
    """
    if os.environ.get("RAY_ADDRESS", "") not in ("", "local"):
        from openrlhf_shear.train.nodes.cluster import named_cluster  # late, as it loads Ray

        try:
            named_cluster()
        except RefusedError as error:
            raise LineError(str(error)) from error
        probe = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True)
        if probe.returncode == 0 and (gpus := json.loads(probe.stdout.splitlines()[-1])):
            return len(gpus), int(min(gpus)), device == "cpu"
    seen = len(gpu.visible())
    if device != "cpu" and (seen or device_memory or device == "cuda"):
        return 1, seen or _UPSTREAM, False
    return 1, 1, True
