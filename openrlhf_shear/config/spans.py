"""How a response is cut into spans: each knob of the spans is a field of `SpanCut`, which code passes on whole."""

from dataclasses import dataclass

from openrlhf_shear.config.knobs import knob, require_all

TAILS = ("one", "every")


@dataclass(frozen=True)
class SpanCut:
    """Spans of a response. `transport.geometry.span_starts` makes them.

    >>> SpanCut(window=50, stride=10).max_spans
    0
    """

    window: int = knob(100, "Span length w, in tokens (>= 1). A response shorter than this is a single span.")
    stride: int = knob(25, "Distance between the starts of neighbouring spans, in tokens (1 <= stride <= window).")
    max_spans: int = knob(
        0,
        "Most spans of a rollout (0: any number). A longer rollout gets a larger stride, up to the window. The search "
        "time grows with the pairs of spans: 32k tokens with a stride of 25 have 1277 spans a rollout.",
    )
    tail: str = knob(
        "one",
        "Spans at the end of a response. one: the first span that reaches the end is the last; every: a span at every "
        "start below the length, shorter and shorter, which is another reading of the paper.",
        TAILS,
    )

    owner = "shear"  # the rule whose flags the knobs are, for messages

    def __post_init__(self):
        require_all(self, self.owner, *self._requirements())

    def _requirements(self) -> tuple[tuple[str, bool, str, str], ...]:
        too_far = f"must not exceed {self.owner}.window ({self.window}), or tokens between spans get no weight"
        return (
            ("window", self.window >= 1, "must be at least 1", "the number of tokens in a span, e.g. 100"),
            ("stride", self.stride >= 1, "must be at least 1", "the number of tokens between spans, e.g. 25"),
            ("stride", self.window < 1 or self.stride <= self.window, too_far, f"at most {self.window}"),
            ("max_spans", self.max_spans >= 0, "must be at least 0", "e.g. 512, or 0 for any number"),
        )
