"""A driver, and an actor in place of the trainer, while parts of Ray hang: `python relayed.py VICTIM=SIGNAL ...`.

VICTIM is a regular expression for processes of the Ray that is started here. They get the signals one after another,
after each a step is made.
"""

import re
import signal
import sys

import psutil
import ray

from openrlhf_shear.train.screen import relay
from openrlhf_shear.train.screen.story import doing, say


class Trainer:
    def __init__(self):
        say("before it is followed")

    @ray.method(concurrency_group="output")
    def printed(self, seen, patience):
        return relay.diverted().fetch(seen, patience)

    def fit(self, steps):
        for step in steps:
            say(f"{step}/4")
            doing(f"in step {step}")
            relay.init_logger("openrlhf").warning(f"of step {step}")


ray.init(address="local", include_dashboard=False, num_cpus=1)
followed = relay.Followed(ray.remote(concurrency_groups={"output": 1})(Trainer))
trainer = followed.remote()
ray.get(trainer.printed.remote(0, 0.0))  # from here on nothing goes through Ray's log
ray.get(trainer.fit.remote([1, 2]))
family = {process: " ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)}
hit = []
for step, (victim, how) in enumerate((word.split("=") for word in sys.argv[1:]), 3):
    found = [process for process, words in family.items() if re.search(victim, words)]
    assert found, victim
    for process in found:
        process.send_signal(signal.Signals[how])
    ray.get(trainer.fit.remote([step]))
    hit += found
followed.close()
for process in hit:  # those that only stand still; Ray ends with them
    if process.is_running():
        process.send_signal(signal.SIGCONT)
