"""Does the distance track reasoning quality? The paper's sections 2 and 5.1, and pages to look at rollouts.

run (sampled -> measure) -> tables: rollouts, prefixes -> analyses -> pictures, findings. page shows rollouts.
"""
