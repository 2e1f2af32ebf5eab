"""Where the time goes from the command of `make run` to the end of its first step.

    python benchmarks/first_step.py --output benchmarks/results/first_step.json

For each stage it prints wall and processor seconds, and the processor seconds of each kind of process. Stages begin
where the screen says so. Last come the processor seconds that a bare import of each process's packages takes.
"""

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil
from measure import arithmetic_job, environment, print_table, script_parser, write_json

HERE = Path(__file__).parents[1]
STAGES = {  # what the screen shows when it begins: the stage
    "": "data, model, checks of the line",
    "starting Ray": "Ray",
    "placing and loading": "processes of the run, imports",
    "\nloading the models": "models into ranks and engines",
    "evaluating": "evaluation before training",
    "sampling": "sampling of step 1",
    "log-probs, credit": "log-probs, credit and update of step 1",
}
_END = re.compile(r"^ *1/2 ", re.MULTILINE)
PROCESSES = {  # words of a command line: the kind of process
    "TrainerActor": "trainer",
    "PolicyActor": "actor",
    "RolloutRayActor": "engine",
    "EngineCore": "engine core",
    "train_ppo_ray": "driver",
    "make_arithmetic": "data",
    "ray": "Ray",
}
_OTHER = "other"
IMPORTS = {  # a process: what it imports before it works
    "driver": "openrlhf_shear.train.start.launch, openrlhf.cli.train_ppo_ray",
    "trainer": "openrlhf_shear.train.run.trainer_actor",
    "actor": "openrlhf_shear.train.update.actor",
    "engine": "openrlhf_shear.train.sampling.engine",
}


def first_step(folder: Path) -> list[dict]:
    """Start the job, and end it after its first step; return a row for each stage."""
    with (folder.parent / "screen.log").open("w") as screen:
        job = arithmetic_job(folder, screen, 2)
    root = psutil.Process(job.pid)
    stages, rows, used = list(STAGES), [], {}
    began, before = time.monotonic(), {}
    while True:
        time.sleep(0.05)
        text = Path(screen.name).read_text(errors="replace")
        used |= seconds_of([root, *root.children(recursive=True)])
        is_last = len(stages) == 1
        if _END.search(text) if is_last else any(stage in text for stage in stages[1:]):
            passed = 1 if is_last else next(i for i, stage in enumerate(stages) if i and stage in text)
            now, total = time.monotonic(), by_kind(used)
            spent = {kind: round(total[kind] - before.get(kind, 0), 2) for kind in total}
            row = {"stage": STAGES[stages[0]], "seconds": round(now - began, 2), "cpu": round(sum(spent.values()), 2)}
            rows.append(row | {"of": {kind: value for kind, value in spent.items() if value >= 0.05}})
            began, before, stages = now, total, stages[passed:]
        if not stages:
            break
        if job.poll() is not None:
            raise SystemExit(f"first_step.py: the job ended:\n{Path(screen.name).read_text()[-3000:]}")
    for process in [*root.children(recursive=True), job]:
        process.kill()
    job.wait()
    return rows


def seconds_of(processes: list[psutil.Process]) -> dict[int, tuple[str, float]]:
    """Return each process's kind and processor seconds so far, by its number."""
    found = {}
    for process in processes:
        try:
            times, words = process.cpu_times(), " ".join(process.cmdline())
        except psutil.Error:  # it has ended: its last sample stays
            continue
        kind = next((kind for word, kind in PROCESSES.items() if word in words), _OTHER)
        found[process.pid] = kind, times.user + times.system
    return found


def by_kind(used: dict[int, tuple[str, float]]) -> dict[str, float]:
    """Return the sum of processor seconds of each kind."""
    total: dict[str, float] = defaultdict(float)
    for kind, seconds in used.values():
        total[kind] += seconds
    return dict(total)


def import_seconds(modules: str, rounds: int) -> float:
    """Return the median processor seconds of a process that imports `modules`."""
    code = f"from openrlhf_shear.train.cpu import backend; backend.install()\nimport {modules}\n"
    code += "import resource; use = resource.getrusage(resource.RUSAGE_SELF); print(use.ru_utime + use.ru_stime)"
    line = [sys.executable, "-c", code]
    return statistics.median(
        float(subprocess.run(line, capture_output=True, text=True, check=True, cwd=HERE).stdout.split()[-1])
        for _ in range(rounds)
    )


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="imports of each kind (default 3)")
    args = parser.parse_args()
    about = environment()
    with tempfile.TemporaryDirectory() as folder:
        rows = first_step(Path(folder, "run"))
    imports = [{"process": name, "cpu": import_seconds(what, args.rounds)} for name, what in IMPORTS.items()]
    total = {name: round(sum(row[name] for row in rows), 1) for name in ("seconds", "cpu")}
    shown = [row | {"kinds": ", ".join(f"{kind} {value:.1f}" for kind, value in row["of"].items())} for row in rows]
    columns = {"stage": "stage", "seconds": "seconds", "cpu": "CPU seconds", "kinds": "of these"}
    print_table("from the command to the end of step 1", [*shown, {"stage": "all"} | total], columns)
    print_table("a bare import", imports, {"process": "process", "cpu": "CPU seconds"})
    write_json(args.output, {"environment": about, "total": total, "rows": rows, "imports": imports})


if __name__ == "__main__":
    main()
