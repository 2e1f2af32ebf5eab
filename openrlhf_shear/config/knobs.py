"""Knobs: dataclass fields with a declared range, from which flags, help and the checks of values follow."""

import math
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields

from openrlhf_shear.config.refusal import LineError, Refusal, refusal


@dataclass(frozen=True)
class Range:
    """Numbers from `least` to `most`, both included unless marked open. Infinity is excluded unless `endless`.

    >>> 0.5 in Range(0, 1), str(Range(0, 1, open_least=True)), str(Range(1, also=0))
    (True, 'in (0, 1]', 'at least 1, or 0')
    """

    least: float
    most: float = math.inf
    open_least: bool = False
    open_most: bool = False
    endless: bool = False  # infinity is allowed
    also: float | None = None  # a value outside with a special meaning, e.g. 0 for no limit
    remedy: str = ""  # what to use instead of a value outside

    def __contains__(self, value: float) -> bool:
        """Return whether the range includes `value`; no range includes NaN."""
        above = value > self.least if self.open_least else value >= self.least
        below = value < self.most if self.open_most else value <= self.most
        return (above and below and (self.endless or math.isfinite(value))) or value == self.also

    def problem(self, value: float) -> str:
        """Return what a value outside has to be."""
        return f"must be {'finite, and ' * (value == math.inf and not self.endless)}{self}"

    def __str__(self) -> str:
        also = "" if self.also is None else f", or {self.also:.10g}"
        if math.isinf(self.most):
            return ("finite" if math.isinf(self.least) else self._above()) + also
        if self.open_least or self.open_most:
            left, right = "(" if self.open_least else "[", ")" if self.open_most else "]"
            return f"in {left}{self.least:.10g}, {self.most:.10g}{right}{also}"
        return f"from {self.least:.10g} to {self.most:.10g}{also}"

    def _above(self) -> str:
        return f"{'greater than' if self.open_least else 'at least'} {self.least:.10g}"


POSITIVE = Range(0, open_least=True)
NOT_NEGATIVE = Range(0)
COUNT = Range(1)
SHARE = Range(0, 1)


def knob(default, help: str, within: Range | tuple[str, ...] | None = None, fallback: str | None = None):
    """Make a dataclass field for a flag (`line.frame.add_knob`).

    Args:
        within: its numbers, or its words; a default of None is allowed too.
        fallback: the flag whose value the knob has where it is unset.
    """
    words = within if isinstance(within, tuple) else None
    shown = f"{f'{within}; ' if isinstance(within, Range) else ''}default: {'unset' if default is None else default}"
    about = f"{help} ({shown})"
    return field(default=default, metadata={"help": about, "within": within, "choices": words, "fallback": fallback})


@dataclass(frozen=True)
class Knobs:
    """Base of the classes of knobs, frozen dataclasses. Making one checks its values.

    A class names its section of flags: `class GtpoConfig(Knobs, section="gtpo")` has the flags `--gtpo.*`.

    Raises LineError: a value is out of its knob's range, or two values do not go together.
    """

    section = ""

    def __init_subclass__(cls, section: str = "", **others) -> None:
        super().__init_subclass__(**others)
        cls.section = section or cls.section

    def __post_init__(self) -> None:
        wrong = [each for knob in fields(self) if (each := self._out_of_range(knob))] or list(self.conflicts())
        if wrong:
            raise LineError(*wrong)

    def conflicts(self) -> Iterator[Refusal]:
        """Yield what is wrong between knobs, each of which is in its range."""
        return iter(())

    def idle_needs(self) -> frozenset[str]:
        """Return the needs of the rule that it does not have with these values."""
        return frozenset()

    def changed(self) -> dict[str, object]:
        """Return, by name, the knobs that differ from their defaults; the class makes the same object of them."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {each.name: values[each.name] for each in fields(self) if values[each.name] != each.default}

    def refusal(self, name: str, problem: str, remedy: str) -> Refusal:
        return refusal(f"{self.section}.{name}", problem, getattr(self, name), remedy)

    def _out_of_range(self, knob: Field) -> Refusal | None:
        value, within = getattr(self, knob.name), knob.metadata.get("within")
        if within is None or (value is None and knob.default is None) or value in within:
            return None
        if isinstance(within, tuple):
            return self.refusal(knob.name, "is not known", f"one of {', '.join(within)}")
        remedy = within.remedy or f"e.g. {knob.default}"
        return self.refusal(knob.name, within.problem(value), remedy)
