"""Train with OpenRLHF and SHEAR: `python -m openrlhf_shear.cli.train_ppo_ray --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from openrlhf_shear.cli.flags import DUMP, ESTIMATOR, PROG, SEARCH, SECTIONS, THRESHOLD, build_parser, credit_spec
from openrlhf_shear.config import PRM_RULES, SEARCH_RULES, CreditSpec, is_outside, is_rule
from openrlhf_shear.fork import upstream
from openrlhf_shear.preflight import checks, legacy
from openrlhf_shear.preflight.rules import acts_in_update


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The checked command line: OpenRLHF's flat namespace with dotted names, and the fork's.

    Those are `device`, `dump_rollouts_every`, `eval.before_train`, some `reward.*`, and `credit`: a `CreditSpec` when
    the estimator is a credit rule, None otherwise. The values that are in it are gone, and the estimator reads
    "group_norm" in place of a rule's name: that is what OpenRLHF's own checks and branches know.

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
        spec = credit_spec(vars(args))
        checks.check(args)
    except ValueError as error:
        parser.error(str(error))
    given = [token for token in translated if token.startswith(tuple(f"--{section}." for section in SECTIONS))]
    return _finish(args, spec, given)


def _finish(args: argparse.Namespace, spec: CreditSpec, given: list[str]) -> argparse.Namespace:
    values = {name: value for name, value in vars(args).items() if name.split(".")[0] not in SECTIONS}
    rule = is_rule(spec.estimator)
    reads_prm = spec.estimator in PRM_RULES or is_outside(spec.estimator)
    searches = spec.estimator in SEARCH_RULES
    shared = (*([THRESHOLD, DUMP] if rule else []), *(SEARCH if searches else []), *(["--prm."] if reads_prm else []))
    useful = (f"--{spec.estimator}.", *shared)
    if idle := [flag for flag in given if not flag.startswith(useful)]:
        sections = dict.fromkeys(flag.removeprefix("--").split(".")[0] for flag in idle)
        rules = [name for section in sections for name in (PRM_RULES if section == "prm" else [section])]
        remedy = " or ".join(dict.fromkeys(rules))
        print(
            f"[Warning] {', '.join(idle)} has no effect with --{ESTIMATOR} {spec.estimator}; "
            f"use --{ESTIMATOR} {remedy}",
            file=sys.stderr,
        )
    if not rule:
        return argparse.Namespace(**values, credit=None)
    if values["actor.entropy_coef"] is None and acts_in_update(spec):
        values["actor.entropy_coef"] = 0.0  # OpenRLHF then computes entropies, and adds none of them to the loss
    return argparse.Namespace(**values | {ESTIMATOR: "group_norm", "credit": spec})


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(sys.argv[1:] if argv is None else argv)
    from openrlhf_shear.fork.launch import launch

    launch(args)


if __name__ == "__main__":
    main()
