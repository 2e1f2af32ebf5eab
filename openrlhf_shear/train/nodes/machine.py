"""Number of GPUs of a Ray cluster, found before the run joins it."""

import json
import subprocess
import sys

from openrlhf_shear.config.refusal import LineError, Refusal
from openrlhf_shear.train.screen.outcome import RefusedError

_ASK = """
import json, ray
ray.init(log_to_driver=False, logging_level="ERROR")
gpus = [node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]]
print(json.dumps([int(count) for count in gpus if count]))
"""


def cluster_gpus() -> list[int]:
    """Return the GPUs of each node with GPUs of the cluster at RAY_ADDRESS.

    Raises:
        LineError: nothing answers at RAY_ADDRESS.
    """
    from openrlhf_shear.train.nodes.cluster import named_cluster  # late, as it loads Ray

    try:
        named_cluster()
    except RefusedError as error:
        raise LineError(Refusal("", str(error))) from error
    probe = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True)
    return json.loads(probe.stdout.splitlines()[-1]) if probe.returncode == 0 else []
