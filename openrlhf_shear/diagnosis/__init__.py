"""Does the distance track reasoning quality? The paper's sections 2 and 5.1, and pages to look at rollouts.

parquet (files of a known kind and version) -> rollouts (what a page shows), prefixes (what the analyses read).
"""
