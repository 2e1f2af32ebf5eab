"""A driver, and an actor in place of the trainer, while Ray's log monitor hangs: `python relayed.py VICTIM SIGNAL`.

VICTIM is a regular expression for processes of the Ray that is started here.
"""

import re
import signal
import sys

import psutil
import ray

from openrlhf_shear.train.start import relay
from openrlhf_shear.train.start.story import doing, say


class Trainer:
    def __init__(self):
        say("before it is followed")

    @ray.method(concurrency_group="output")
    def printed(self, seen, patience):
        return relay.fetch(seen, patience)

    def fit(self, steps):
        for step in steps:
            say(f"{step}/4")
            doing(f"in step {step}")
            relay.init_logger("openrlhf").warning(f"of step {step}")


ray.init(address="local", include_dashboard=False, num_cpus=1)
followed = relay.Followed(ray.remote(concurrency_groups={"output": 1})(Trainer))
trainer = followed.remote()
ray.get(trainer.fit.remote([1, 2]))
victims = [
    process
    for process in psutil.Process().children(recursive=True)
    if re.search(sys.argv[1], " ".join(process.cmdline()))
]
assert victims
for process in victims:
    process.send_signal(signal.Signals[sys.argv[2]])
ray.get(trainer.fit.remote([3, 4]))
followed.close()
for process in victims:  # those that only stand still; Ray ends with them
    if process.is_running():
        process.send_signal(signal.SIGCONT)
