"""The code grader as the rest of the package asks it."""

from openrlhf_shear.rewards.code.grade import grade_code
from openrlhf_shear.rewards.code.hosts import CodeWorkers
from openrlhf_shear.rewards.code.tests import tests_of
from openrlhf_shear.rewards.grader import Grader, Limits, Sample
from openrlhf_shear.rewards.verdict import Reason, Verdict


def _grade(sample: Sample, limits: Limits, workers: CodeWorkers) -> Verdict:
    return grade_code(
        sample.response,
        sample.label,
        timeout=limits.seconds,
        memory_mb=limits.memory_mb,
        allow_unsandboxed=limits.allow_unsandboxed,
        workers=workers,
    )


def _label_problem(label: object) -> str | None:
    if not isinstance(label, str | dict):
        return f"is no tests but {label!r:.80}"
    try:
        tests_of(label)
    except ValueError as error:
        return f"is no tests ({' '.join(str(error).split())})"
    return None


CODE = Grader(
    name="code",
    title="Code generation",
    about="runs the response's program on the label's tests, in a jail",
    grade=_grade,
    label_problem=_label_problem,
    example=("```python\nprint(42)\n```", {"inputs": [""], "outputs": ["42\n"]}),
    nothing=Reason.NO_CODE,
    start_workers=CodeWorkers,
    seconds=10.0,
    timed="a test of a program",
    has_tests=True,
    has_answer=False,
)
