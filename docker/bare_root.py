"""Run a Dockerfile without a container runtime: debootstrap makes the root, bubblewrap runs the steps in it.

    python docker/bare_root.py docker/cpu.Dockerfile /tmp/root       every step, and then CMD
    python docker/bare_root.py docker/cpu.Dockerfile /tmp/root --run 'examples/scripts/train_shear_arithmetic.sh'

Run it as root, on Debian (apt-get install debootstrap bubblewrap). FROM must be debian:SUITE; --base names
one in its place. It knows ARG, ENV, WORKDIR, COPY, RUN, USER and CMD, and refuses other instructions. `COPY .` copies
the files that git does not ignore. Finished steps are recorded in ROOT.steps, and the next call resumes after them;
files that changed since are not copied again. --share and --env give package managers what they need to reach their
registries; these do not stay in the root. --env also sets an ARG.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
START = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


def steps(dockerfile: str) -> list[tuple[str, str]]:
    """Return instructions with their arguments, in order, without comments and with continued lines joined."""
    lines = "\n".join(line for line in dockerfile.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", "", lines)
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


class Root:
    """A root file system, and the settings of the instructions so far."""

    def __init__(self, folder: Path, shared: dict[str, str], given: dict[str, str]) -> None:
        self.folder, self.shared, self.given = folder, shared, given
        self.env, self.workdir, self.user, self.cmd = dict(START), "/", "root", ["true"]

    def apply(self, name: str, rest: str, done: bool) -> None:
        """Apply an instruction; if it is `done`, only its settings, since its files exist."""
        if name in ("ARG", "ENV"):
            for pair in shlex.split(rest):
                key, _, value = pair.partition("=")
                self.env[key] = re.sub(r"\$(\w+)", lambda match: self.env.get(match[1], ""), value)
        elif name == "WORKDIR":
            self.workdir = rest
        elif name == "USER":
            self.user = rest
        elif name == "CMD":
            self.cmd = json.loads(rest)
        elif name not in ("FROM", "RUN", "COPY"):
            raise SystemExit(f"bare_root.py: error: unknown instruction: got {name}")
        elif not done:
            print(f"--- {name} {rest}", flush=True)
            {"FROM": self.start, "RUN": self.run, "COPY": self.copy}[name](rest)

    def start(self, image: str) -> None:
        distribution, _, suite = image.partition(":")
        if distribution != "debian":
            raise SystemExit(f"bare_root.py: error: only FROM debian:SUITE is understood: got {image}")
        line = ["debootstrap", "--variant=minbase", suite.removesuffix("-slim"), str(self.folder), MIRROR]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)

    def copy(self, rest: str) -> None:
        flags = [word for word in rest.split() if word.startswith("--")]
        *sources, target = (word for word in rest.split() if not word.startswith("--"))
        inside = Path(os.path.normpath(os.path.join(self.workdir, target)))
        for source in sources:
            whole = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
            names = subprocess.check_output(whole, text=True).splitlines() if source == "." else [source]
            for name in filter(os.path.isfile, names):
                path = self.folder / inside.relative_to("/") / (name if source == "." else Path(name).name)
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(name, path)
        for owner in (flag.removeprefix("--chown=") for flag in flags):
            self.run(f"chown -R {owner} {inside}")

    def run(self, command: str) -> None:
        binds = [word for source, target in self.shared.items() for word in ("--ro-bind", source, target)]
        settings = (self.env | self.given).items()
        line = ["bwrap", "--bind", str(self.folder), "/", "--dev", "/dev", "--proc", "/proc", *binds]
        line += [word for path in ("/tmp", "/dev/shm") for word in ("--perms", "1777", "--tmpfs", path)]
        line += ["--unshare-pid", "--die-with-parent", "--cap-add", "ALL", "--clearenv", "--chdir", self.workdir]
        line += [word for key, value in settings for word in ("--setenv", key, value)]
        if self.user != "root":
            line += ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--init-groups", "--inh-caps=-all"]
            line += ["env", f"HOME=/home/{self.user}"]
        subprocess.run([*line, "/bin/sh", "-c", command], check=True)


def pairs(words: list[str], sign: str, default: Callable[[str], str]) -> dict[str, str]:
    """Return each `A=B` as A: B, where `=` is `sign`; without the sign, the value is the default for A."""
    return {key: value if sep else default(key) for key, sep, value in (word.partition(sign) for word in words)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dockerfile", type=Path)
    parser.add_argument("root", type=Path, help="the folder to make")
    parser.add_argument("--run", help="command to run in the root (default: CMD)")
    about = "mount this path read-only in the root (always: /etc/resolv.conf and /sys)"
    parser.add_argument(
        "--share", action="append", default=["/etc/resolv.conf", "/sys"], metavar="PATH[:THERE]", help=about
    )
    about = "set this variable in the root (default value: that of this environment)"
    parser.add_argument("--env", action="append", default=[], metavar="NAME[=VALUE]", help=about)
    parser.add_argument("--base", metavar="debian:SUITE", help="begin with this instead of the file's FROM")
    args = parser.parse_args()
    shared, given = pairs(args.share, ":", str), pairs(args.env, "=", lambda name: os.environ.get(name, ""))
    root, journal = Root(args.root.resolve(), shared, given), args.root.with_suffix(".steps")
    done = json.loads(journal.read_text()) if journal.exists() else []
    todo = [[name, args.base or rest if name == "FROM" else rest] for name, rest in steps(args.dockerfile.read_text())]
    if todo[: len(done)] != done or args.root.exists() > bool(done):
        parser.error(f"the root was made by other steps: remove {args.root} and {journal}")
    try:
        for number, step in enumerate(todo):
            root.apply(*step, done=number < len(done))
            journal.write_text(json.dumps(todo[: max(number + 1, len(done))]))
        root.run(args.run or shlex.join(root.cmd))
    except subprocess.CalledProcessError as error:
        sys.exit(f"bare_root.py: error: exit code {error.returncode}: {error.cmd[-1]}")


if __name__ == "__main__":
    main()
