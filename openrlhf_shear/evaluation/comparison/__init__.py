"""Tables, pictures and one page over runs, in the paper's kinds: `runs` reads, `cells` groups seeds, the rest draws."""

from openrlhf_shear.evaluation.comparison.runs import Evaluation, ReportError, Run, read_run

__all__ = ["Evaluation", "ReportError", "Run", "read_run"]
