"""Does the distance track reasoning quality? The paper's sections 2 and 5.1.

run (sampled -> measure) -> tables: rollouts, prefixes -> analyses -> pictures, findings.
"""
