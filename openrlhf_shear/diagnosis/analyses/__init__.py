"""The paper's analyses of the distance (sections 2 and 5.1, appendix A), each a pure function on the diagnosis' tables.

Each declares its quantities of `rows`, and a bootstrap makes its estimates of them.
"""
