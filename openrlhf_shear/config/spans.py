"""Knobs of how a response is cut into spans: each is a field of `SpanCut`, which code passes on whole."""

from collections.abc import Iterator
from dataclasses import dataclass

from openrlhf_shear.config.knobs import COUNT, NOT_NEGATIVE, Knobs, knob
from openrlhf_shear.config.refusal import Refusal

TAILS = ("one", "every")


@dataclass(frozen=True)
class SpanCut(Knobs, section="shear"):
    """Spans of a response. `transport.geometry.span_starts` makes them.

    >>> SpanCut(window=50, stride=10).max_spans
    0
    """

    window: int = knob(100, "Span length w, in tokens. A response shorter than this is a single span.", COUNT)
    stride: int = knob(25, "Distance between the starts of neighbouring spans, in tokens, up to the window.", COUNT)
    max_spans: int = knob(
        0,
        "Most spans of a rollout (0: any number). A longer rollout gets a larger stride, up to the window. The search "
        "time grows with the pairs of spans: 32k tokens with a stride of 25 have 1277 spans a rollout.",
        NOT_NEGATIVE,
    )
    tail: str = knob(
        "one",
        "Spans at the end of a response. one: the first span that reaches the end is the last; every: a span at every "
        "start below the length, shorter and shorter, which is another reading of the paper.",
        TAILS,
    )

    def conflicts(self) -> Iterator[Refusal]:
        if self.stride > self.window:
            problem = f"must not exceed {self.section}.window ({self.window}), or tokens between spans get no weight"
            yield self.refusal("stride", problem, f"at most {self.window}")
