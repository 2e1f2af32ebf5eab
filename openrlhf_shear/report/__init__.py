"""What every tool that reports needs: statistics with intervals, tables, pictures, pages, findings.

estimates (a number with its interval) <- bootstrap (quantities as they are declared, over problems), paired (over
seeds); figures (a picture, its theme) <- plots; tables, figures <- findings, which are written and printed; page.
"""
