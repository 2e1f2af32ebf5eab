"""The colours of weights and distances: from the page's paper to burnt orange, even steps of OKLab lightness.

One hue whose lightness only falls (in dark mode: rises) reads the same with every colour blindness. The first `LEVELS`
carry text, at a contrast of 5.3 at least; heatmaps carry none and go on to the end.
"""

from __future__ import annotations

LEVELS = 10
LIGHT = (
    *("#fffaf0", "#fef1da", "#fee8c4", "#fddead", "#fcd596", "#f9c880", "#f5b76d", "#f0a659", "#eb9444", "#e5832a"),
    *("#ca6b1f", "#b05414", "#943f0e", "#762f0b", "#5a1f08"),
)
DARK = (
    *("#1d2026", "#272424", "#312822", "#3b2c1f", "#45301b", "#513518", "#5f3c17", "#6d4215", "#7b4812", "#8a4f0c"),
    *("#a96619", "#c97e25", "#e19a48", "#f1b976", "#ffd9a0"),
)


def css() -> str:
    """`--w0`, `--w1`, ... of the reader's scheme, and the classes `.w0`, `.w1`, ... of shaded text."""

    def root(colours: tuple[str, ...]) -> str:
        return ":root {" + "".join(f" --w{i}: {colour};" for i, colour in enumerate(colours)) + " }\n"

    classes = "".join(f".w{i} {{ background: var(--w{i}); }}\n" for i in range(LEVELS))
    return root(LIGHT) + "@media (prefers-color-scheme: dark) { " + root(DARK) + "}\n" + classes
