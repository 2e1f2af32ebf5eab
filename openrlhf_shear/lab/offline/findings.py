"""Tables and files of an offline placement: the gate first, then the comparison."""

from collections.abc import Mapping, Sequence

from openrlhf_shear.config.names import titled
from openrlhf_shear.lab.offline.responses import ResponseGroup
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.findings import Results
from openrlhf_shear.report.provenance import provenance
from openrlhf_shear.report.tables import Table
from openrlhf_shear.rollouts.localisation import PAPER_LAST_FIRST

TITLE = "Credit on human-marked first wrong steps"
LIFT = (
    "Lift: mean share of a wrong response's weight on its first wrong step, divided by the mean share of its tokens in "
    "that step; uniform credit has 1. 95% bootstrap intervals over problems."
)
GATE_HEADER = ("Rule", "Lift, number changed", "Same step, unchanged", "Largest weight in step", "A random token")
HEADER = (
    *("Rule", "Lift", "Lift over {}", "Lift, equal contrast", "Equal contrast over {}"),
    *("Same fraction, right responses", "Against the same outcome", "Largest weight in step", "A random token"),
    *("AUC after/before", "Same fraction, right responses (AUC)", "AUC over right responses"),
    *("Weight, last/first quarter", "Weight, wrong/right", "Responses"),
)


def gate_verdict(gate: Mapping) -> str:
    """Return the gate's result in a line."""
    if gate["passed"] is None:
        return "Gate: not measured. No right response has a number to change and another right response beside it."
    lift = gate["rules"][gate["by"]]["lift"].text(".2f")
    if gate["passed"]:
        return f"Gate: passed. {gate['by']} finds changed numbers with lift {lift}; {gate['needed']} is needed."
    return (
        f"Gate: failed. The model is too weak to ask: the best rule, {gate['by']}, finds changed numbers with lift "
        f"{lift}; {gate['needed']} is needed. What follows is exploratory."
    )


def gate_table(gate: Mapping) -> Table:
    rules = gate["rules"]
    rows = [
        (title, *_cells(placed, ".2f", "lift", "lift_unchanged"), *_cells(placed, ".1%", "hit", "chance"))
        for title, placed in zip(titled(rules), rules.values(), strict=True)
    ]
    note = "We change one number behind an equals sign in a right response. Unchanged: the same step before the change."
    return Table("The gate: numbers that we changed", GATE_HEADER, rows, [note, LIFT])


def comparison_table(compared: Mapping, baseline: str) -> Table:
    """Return a row for each rule; `baseline` is the rule with which lifts are compared."""
    rules, titles = compared["rules"], titled(compared["rules"])
    names = dict(zip(rules, titles, strict=True))

    def over(differences: str, rule: str) -> str:
        return "-" if rule == baseline else compared[differences][rule][baseline].text("+.3f")

    rows = [
        (
            names[rule],
            *_cells(placed, ".3f", "lift"),
            over("differences", rule),
            *_cells(placed, ".3f", "lift_equal_contrast"),
            over("differences_equal_contrast", rule),
            *_cells(placed, ".3f", "lift_control", "lift_same_outcome"),
            *_cells(placed, ".1%", "hit", "chance"),
            *_cells(placed, ".3f", "auc", "auc_control"),
            *_cells(placed, "+.3f", "auc_over_control"),
            *_cells(placed, ".2f", "last_over_first", "wrong_over_right"),
            f"{placed['responses']:,}",
        )
        for rule, placed in rules.items()
    ]
    notes = [
        LIFT,
        "Same fraction: the tokens of the problem's right responses between the same fractions of their length. A rule "
        "that leaves right responses alone has lift 1 and AUC 0.5 there by construction.",
        "Against the same outcome: the problem's other wrong responses are called right, and take the place of the "
        "right responses.",
        "Equal contrast: weights are replaced by their ranks in the response, so that all rules have the same weights.",
        "A permuted control gets outcomes that are neither the group's nor their opposite; a rule gives 1 to responses "
        "that it is told are right.",
        f"The paper's distances are {PAPER_LAST_FIRST} times as large in the last quartile of positions as in the "
        "first.",
    ]
    warnings = sorted({placed["lift"].warning for placed in rules.values() if placed["lift"].warning})
    notes += [f"Warning: {warning}." for warning in warnings]
    header = [title.format(names[baseline]) for title in HEADER]
    return Table("Where the weight of wrong responses goes", header, rows, notes)


def find(
    settings: Mapping, gate: Mapping, groups: Sequence[ResponseGroup], compared: Mapping, baseline: str
) -> Results:
    """Return the numbers and tables; they hold no text of the data."""
    members = [response for group in groups for response in group.responses]
    counts = {
        "problems": len(groups),
        "responses": len(members),
        "wrong": sum(not response.correct for response in members),
        "marked": sum(response.is_marked for response in members),
    }
    results = {
        "settings": dict(settings),
        "made": provenance(),
        "baseline": baseline,
        "counts": counts,
        "gate": gate,
        "comparison": compared,
    }
    verdict = [
        gate_verdict(gate),
        f"Compared: {counts['problems']:,} problems with {counts['responses']:,} responses, "
        f"{counts['wrong']:,} of them wrong, {counts['marked']:,} with a marked step.",
    ]
    return Results(TITLE, results, [gate_table(gate), comparison_table(compared, baseline)], [], [], [], verdict)


def _cells(placed: Mapping[str, Estimate], form: str, *names: str) -> list[str]:
    return [placed[name].text(form) for name in names]
