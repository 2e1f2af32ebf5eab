"""Checks of every row of the data sets that a command line names, and of the first row's reward."""

from collections.abc import Generator, Iterator

from openrlhf_shear.config.refusal import Finding, LineError, Refusal, Told, caught, did_you_mean, refusal, refuse
from openrlhf_shear.data.columns import label_at, label_columns, no_label, value_at
from openrlhf_shear.data.files import DataError
from openrlhf_shear.data.training_rows import SplitError, training_rows
from openrlhf_shear.line.values import Values
from openrlhf_shear.preflight.prompts import Prompts, room
from openrlhf_shear.preflight.rewards import try_reward
from openrlhf_shear.rewards.graders import GRADERS

_LABELS = ("answer", "label", "solution", "ground_truth", "gold", "target", "final_answer")  # usual names of labels
_SUM = 1.4e-8  # a sum of shares that differs more from 1 is refused by NumPy, which draws
_SHOWN = 3  # rows that a message lists


def data(values: Values) -> Iterator[Finding]:
    probabilities, names = values["data.prompt_probs"], values["data.prompt_dataset"].split(",")
    if probabilities is not None and (problem := _of_shares(probabilities.split(","), len(names))):
        yield refusal("data.prompt_probs", problem, probabilities, "e.g. 0.7,0.3")
    if values["data.max_samples"] < 1:
        yield refusal("data.max_samples", "must be at least 1", values["data.max_samples"], "a positive number")
        return
    yield from caught(room, values)
    prompts, done = Prompts(values), set()
    firsts = []
    for flag, split_flag in (("data.prompt_dataset", "data.prompt_split"), ("eval.dataset", "eval.split")):
        for name in (values[flag] or "").split(",") if values[flag] else ():
            if (name.strip(), values[split_flag]) not in done:
                done.add((name.strip(), values[split_flag]))
                try:
                    firsts.append((yield from _data_set(values, flag, name.strip(), split_flag, prompts)))
                except LineError as error:
                    yield from error.refusals
    if first := next(filter(None, firsts), None):
        yield from try_reward(values, *first)


def _of_shares(texts: list[str], count: int) -> str | None:
    """Return why these cannot be the shares of `count` data sets."""
    if len(texts) != count:
        return f"must be one for each of {count} data sets"
    try:
        shares = [float(text) for text in texts]
    except ValueError:
        return "must be numbers"
    return None if min(shares) > 0 and abs(sum(shares) - 1) < _SUM else "must be above 0, and sum to 1"


def _data_set(
    values: Values, flag: str, name: str, split_flag: str, prompts: Prompts
) -> Generator[Finding, None, tuple[str, str, object] | None]:
    """Check a data set; return the place of its first row, the prompt as the policy reads it, and the label."""
    keys = {key: values[key] for key in ("data.input_key", "data.label_key") if values[key] is not None}
    columns: dict[str, None] = {}
    filled: set[str] = set()
    lacking: dict[str, list[str]] = {key: [] for key in keys}
    rows: list[tuple[str, object]] = []
    label: object = ""
    try:
        read = training_rows(name, values[split_flag], values["use_ms"])
        if read is None:
            return None
        for where, row in read:
            columns.update(dict.fromkeys(row))
            if len(rows) >= values["data.max_samples"]:
                continue
            prompt = value_at(row, values["data.input_key"])
            if problem := prompts.asked.problem(prompt):
                lacking["data.input_key"].append(f"{where} {problem}")
            if "data.label_key" in keys:
                given = label_at(row, keys["data.label_key"])
                if isinstance(given, dict):
                    filled.update(field for field, value in given.items() if value is not None)
                label = label if rows else given
                if problem := _no_label(values, given):
                    lacking["data.label_key"].append(f"{where} {problem}")
            rows.append((where, prompt))
    except SplitError as error:
        raise LineError(Refusal(split_flag, str(error))) from error
    except DataError as error:
        raise LineError(Refusal(flag, str(error))) from error
    except ValueError as error:
        raise LineError(Refusal("data.label_key", str(error))) from error
    if not rows:
        refuse(flag, "has no rows", name, "a data set with at least one row")
    wrong = []
    for key in keys:
        wrong += _no_columns(key, keys[key], f"{name} (--{flag})", columns, filled)
    for key, problems in lacking.items():
        if problems:
            shown = "; ".join(problems[:_SHOWN]) + "; ..." * (len(problems) > _SHOWN)
            what = "prompt" if key == "data.input_key" else "label"
            of = f"{len(problems)} of {len(rows)} rows of {name} (--{flag})"
            remedy = f"a data set with a {what} in every row"
            wrong.append(refusal(key, f"gives no {what} in {of}: {shown}", keys[key], remedy))
    if wrong:
        raise LineError(*wrong)
    yield from _question_labels(values, name, columns)
    if values["data.max_images_per_prompt"] > 0:  # a vision model's processor makes the text
        return f"{rows[0][0]} of {name}", str(rows[0][1]), label
    first = prompts.text(*rows[0])
    yield from prompts.check_lengths(name, rows, first)
    return f"{rows[0][0]} of {name}", first, label


def _no_columns(key: str, given: str, of: str, columns: dict[str, None], filled: set[str]) -> Iterator[Refusal]:
    """Refuse columns that are not there, and those of several label columns that are null in every row.

    `columns` has those of the data set, `filled` the names of the label's fields with a value.
    """
    several = key == "data.label_key" and "," in given and given not in columns
    for name, column in (label_columns(given) if several else {given: given}).items():
        if not {column, column.partition(".")[0]} & set(columns):
            remedy = f"--{key} with one of its columns{did_you_mean(column, columns)}: {', '.join(columns)}"
            yield refusal(key, f"is not a column of {of}", column, remedy)
        elif several and name not in filled:
            yield refusal(key, f"names a column without a value in any row of {of}", column, "columns with values")


def _no_label(values: Values, label: object) -> str | None:
    grader = GRADERS.get(values["reward.remote_url"])
    if (problem := no_label(label)) or grader is None:
        return problem
    return "is empty" if label in ("", [], {}) else grader.label_problem(label)


def _question_labels(values: Values, name: str, columns: dict[str, None]) -> Iterator[Told]:
    seen = next((column for column in _LABELS if column in columns), None)
    if seen and not values["data.label_key"] and str(values["reward.remote_url"]).endswith(".py"):
        told = f"reward_func gets '' as every label, although {name} has a column {seen}"
        yield Told(f"without --data.label_key {told}; use --data.label_key {seen}")
