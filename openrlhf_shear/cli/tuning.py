"""Flags of commands that tune each rule's learning rate, and the tuned rates."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from openrlhf_shear.lab.settings import TRIED

_DEFAULTS = {"tuning_seeds": 3, "first_tuning_seed": TRIED, "widen_rates": 0}


def add_tuning(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("learning rate of each rule")
    about = "rates to try for every rule, e.g. 5e-5,1e-4,2e-4; each then trains at its best (default: --learning-rate)"
    group.add_argument("--learning-rates", metavar="RATE,...", help=about)
    about = "seeds of the tuning, which judge nothing (default: 3)"
    group.add_argument("--tuning-seeds", type=int, default=_DEFAULTS["tuning_seeds"], metavar="N", help=about)
    about = "first of the tuning's consecutive seeds (default: %(default)s)"
    group.add_argument("--first-tuning-seed", type=int, default=TRIED, metavar="N", help=about)
    about = "times that a rule's rates grow by a factor of two where its best is an end of them (default: 0)"
    group.add_argument("--widen-rates", type=int, default=0, metavar="N", help=about)


def check_tuning(args: argparse.Namespace, seeds: Sequence[int]) -> list[float]:
    """Return the rates to try, [] without tuning; ValueError for bad flags, and for a seed that would also judge."""
    if args.learning_rates is None:
        for name, default in _DEFAULTS.items():
            if getattr(args, name) != default:
                raise ValueError(f"--{name.replace('_', '-')} needs --learning-rates, the rates to try")
        return []
    from openrlhf_shear.lab.tuning import parse_rates

    rates = parse_rates(args.learning_rates)
    for flag, least in (("tuning_seeds", 1), ("widen_rates", 0)):
        if getattr(args, flag) < least:
            name = flag.replace("_", "-")
            raise ValueError(f"--{name} must be at least {least}: got {getattr(args, flag)}")
    both, free = sorted({*tuning_seeds(args)} & {*seeds}), max([TRIED, *(seed + 1 for seed in seeds)])
    if both:
        raise ValueError(f"--first-tuning-seed: seed {both[0]} would tune and judge; use e.g. {free}")
    if args.first_tuning_seed < TRIED:  # later calls would judge it
        problem = f"must be at least {TRIED}, as smaller seeds judge: got {args.first_tuning_seed}"
        raise ValueError(f"--first-tuning-seed {problem}; use e.g. {free}")
    return rates


def tuning_seeds(args: argparse.Namespace) -> range:
    return range(args.first_tuning_seed, args.first_tuning_seed + args.tuning_seeds)


def tuned(args: argparse.Namespace, rates: Sequence[float], asked: SimpleNamespace, output: Path) -> dict[str, float]:
    """Train what is missing of the tuning, print its scores, and return each rule's best rate by its name.

    Args:
        asked: `settings`, `variants`, `start` and `identity`, as `lab.runs.jobs` takes them.
    """
    from openrlhf_shear.lab.runs import run_all
    from openrlhf_shear.lab.tuning import best_rates, tuning_jobs, widened

    if not rates:
        return {variant.name: asked.settings.learning_rate for variant in asked.variants}
    ranges = {variant.name: rates for variant in asked.variants}
    for widenings_left in reversed(range(args.widen_rates + 1)):
        line = asked.settings, asked.variants, ranges, tuning_seeds(args), asked.start, asked.identity, output
        wanted = tuning_jobs(*line)
        missing = sum(not job.path.is_file() for job in wanted)
        if missing and not args.seeds:
            raise ValueError(f"the tuning lacks {missing} runs, which --seeds 0 does not train; use --seeds 1 or more")
        best = best_rates(wanted, run_all(wanted, args.workers))
        wider = {name: widened(ranges[name], rate) for name, rate in best.items()}
        if not widenings_left or wider == ranges:
            break
        ranges = wider
    for name, rate in best.items():
        tried = ",".join(f"{each:g}" for each in ranges[name])
        print(f"{name}: learning rate {rate:g}, the best of {tried} on {args.tuning_seeds} seeds")
    return best
