"""What is wrong with a machine: small checks, each with what was seen and what to do; no Ray, and no import of vLLM.

`node.check_node` does them all. What is asked of the machine (a version, the driver's answer, who holds a port) is an
argument of each check, so that a test can answer in its place.
"""
