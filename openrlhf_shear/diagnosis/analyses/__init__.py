"""The paper's analyses of the distance (sections 2 and 5.1, appendix A), each a pure function on the diagnosis' tables.

estimates (a number, its interval over problems, what it rests on) and weighted (ranks and AUCs under row weights) carry
trend, changes, separation, positions, within, truncation, groups and first_error.
"""
