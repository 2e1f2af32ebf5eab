"""Train with OpenRLHF and SHEAR: `python -m openrlhf_shear.cli.train_ppo_ray --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from openrlhf_shear.cli import checks, legacy
from openrlhf_shear.cli.flags import ESTIMATOR, PREFIX, PROG, SHEAR, THRESHOLD, build_parser, shear_config
from openrlhf_shear.config import CreditSpec, ShearConfig, is_rule
from openrlhf_shear.fork import upstream


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The checked command line: OpenRLHF's flat namespace with dotted names, and the fork's.

    Those are `device`, `eval.before_train`, some `reward.*`, and `credit`: a `CreditSpec` when the estimator is a
    credit rule, None otherwise. The `shear.*` values are gone, and the estimator reads "group_norm" in place of a
    rule's name: that is what OpenRLHF's own checks and branches know.

    Raises:
        SystemExit: help was asked for (0), a flag or a combination is wrong (2), or OpenRLHF is not the one needed (1).
    """
    try:
        upstream.check_version()
        parser = build_parser()
    except RuntimeError as error:
        raise SystemExit(f"{PROG}: error: {error}") from error
    try:
        translated = legacy.translate(argv)
        args = parser.parse_args(translated)
        config = shear_config(vars(args))
        checks.check(args)
    except ValueError as error:
        parser.error(str(error))
    return _finish(args, config, given=[token for token in translated if token.startswith(f"--{PREFIX}")])


def _finish(args: argparse.Namespace, config: ShearConfig, given: list[str]) -> argparse.Namespace:
    values = {name: value for name, value in vars(args).items() if not name.startswith(PREFIX)}
    chosen = values[ESTIMATOR]
    rule = is_rule(chosen)
    idle = [] if chosen == SHEAR else [flag for flag in given if not (rule and flag.startswith(THRESHOLD))]
    if idle:
        print(
            f"[Warning] {', '.join(idle)} has no effect with --{ESTIMATOR} {chosen}; use --{ESTIMATOR} {SHEAR}",
            file=sys.stderr,
        )
    if rule:
        return argparse.Namespace(**values | {ESTIMATOR: "group_norm", "credit": CreditSpec(chosen, config)})
    return argparse.Namespace(**values, credit=None)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(sys.argv[1:] if argv is None else argv)
    from openrlhf_shear.fork.launch import launch

    launch(args)


if __name__ == "__main__":
    main()
