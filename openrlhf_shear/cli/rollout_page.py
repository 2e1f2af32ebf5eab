"""Write an HTML page of rollouts: tokens shaded by their weights, nearest opposing spans side by side, heatmaps."""

import argparse
from pathlib import Path

from openrlhf_shear.line import frame

EPILOG = """\
RUN is the folder of a run, whose steps are all shown, or a single file. Two commands write such files:

  training   --credit.dump_rollouts_every 20 of openrlhf_shear.cli.train_ppo_ray
             writes CKPT_PATH/rollouts/stepNNNNNN.parquet, every 20th step
  diagnosis  python -m openrlhf_shear.cli.diagnose ... --output DIR writes DIR/rollouts.parquet

  python -m openrlhf_shear.cli.rollout_page ckpt --output rollouts.html
  python -m openrlhf_shear.cli.rollout_page ckpt/rollouts/step000040.parquet --output step40.html
  python -m openrlhf_shear.cli.rollout_page diagnosis/rollouts.parquet --output page.html --limit 20 --title "MATH"

The page is a single file that needs no other file and no network: open it in any browser, send it, keep it. It shows
the policy's output as text and never runs it. Press ? on the page for its keys. Above 20 MB, PAGE.html is an overview
that leads to a page for each step, in the folder PAGE_steps beside it.
"""


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, or a parquet file of rollouts")
    parser.add_argument("--output", required=True, type=Path, metavar="PAGE.html", help="where to write the page")
    parser.add_argument(
        "--limit", type=_count, metavar="N", help="show only the first N groups of a step (default: all)"
    )
    parser.add_argument("--title", help="heading of the page (default: steps and model)")


@frame.command(_flags, __doc__, EPILOG)
def main(args: argparse.Namespace) -> None:
    # Imported late, so that --help and errors in the flags are quick.
    from openrlhf_shear.rollouts.page.page import write_pages

    page, *beside = write_pages(args.run, args.output, args.title, args.limit)
    print(f"{page}: {page.stat().st_size / 1e6:.2f} MB")
    if beside:
        megabytes = sum(each.stat().st_size for each in beside) / 1e6
        print(f"{beside[0].parent}: {len(beside)} pages to which it leads, {megabytes:.2f} MB")


def _count(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a number of groups, at least 1: got {text!r}")


if __name__ == "__main__":
    main()
