"""Break a real training run in every way we know, and measure the loss.

    python benchmarks/faults.py --output faults.json             # every row: hours on two cores
    python benchmarks/faults.py --rows run engine --trials 3     # some rows
    python benchmarks/faults.py --list

Each row is a job of the CPU profile (Ray, DeepSpeed, vLLM, the built-in arithmetic policy), broken as the row says. It
is compared with the same job without the fault, bit for bit: the prompts it trained on, its final weights, optimizer
state, ledger and every step's metrics. Rows with a random moment have `--trials` faults; a row that ends the run starts
it again after each.
"""

import ctypes
import json
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import fault_table
import psutil
from fault_jobs import BATCH, Bench, Job, Outcome, kill
from fault_ways import TWO_RANKS, Row, at_random, ended, in_a_save, in_a_step, in_a_sync, rest, survived
from measure import environment, script_parser

from openrlhf_shear.report.provenance import commit
from openrlhf_shear.rollouts.record import read_rollouts

ENGINE_CORE = "VLLM::EngineCore|spawn_main"  # the second where the environment is too small to hold a process title


# ── Single rows ──


def other_seed(bench: Bench) -> Outcome:
    """Change only the seed; it must differ, or the other rows' "equal" shows nothing."""
    outcome = Outcome("another --train.seed", "from the start", trials=1)
    job = bench.job(outcome.name, 5 * BATCH, "--train.seed", "7")
    outcome.ends = f"another run, exit {job.run(outcome)}"
    return bench.compare(outcome, job)


def finished(bench: Bench) -> Outcome:
    """Start a finished run again; its last batch was partial."""
    outcome = Outcome("finished run", "started again", trials=1)
    job = bench.job(outcome.name, 3 * BATCH + 5)
    job.start()
    job.finish(outcome)
    steps = job.step
    code = job.run(outcome, "--ckpt.load_enable")
    nothing = "nothing left to do" in job.log and job.step == steps
    outcome.ends = f"{'nothing left to do' if nothing else 'TRAINS ON'}, exit {code}"
    return bench.compare(outcome, job)


def node(bench: Bench) -> Outcome:
    """Kill the second of two nodes in a step, and start it again after 20 s."""
    outcome, words = Outcome("one of two nodes killed", "at random"), (*TWO_RANKS, "--ds.zero_stage", "3")
    trials = max(1, bench.trials // 7)
    job = bench.job(outcome.name, 5 * BATCH, *words)
    ports = {name: str(46001 + number) for number, name in enumerate(("port", "ray-client-server-port"))}
    common = ("ray", "start", "--block", "--num-gpus", "1", "--num-cpus", "4", "--disable-usage-stats")
    job.address = f"127.0.0.1:{ports['port']}"

    def start(name: str, *more: str) -> subprocess.Popen:
        with (job.folder / f"ray_{name}.txt").open("a") as log:
            return subprocess.Popen([*common, *more], stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})

    flags = [word for name, port in ports.items() for word in (f"--{name}", port)]
    temporary = tempfile.mkdtemp(prefix="ray_")  # a short path: a socket's path has at most 107 characters
    head = start("head", "--head", "--include-dashboard", "false", "--temp-dir", temporary, *flags)
    time.sleep(10)
    second = start("second", "--address", job.address)
    time.sleep(10)
    job.start("--train.max_restarts", str(trials))
    while outcome.trials < trials and in_a_step(bench, job):
        at = job.step
        kill(*psutil.Process(second.pid).children(recursive=True), second)
        outcome.trials += 1
        started = time.monotonic()
        time.sleep(20)
        second = start("second", "--address", job.address)
        if not job.wait_for(lambda at=at: job.step > at):
            outcome.hangs += job.process.poll() is None
            break
        outcome.seconds.append(time.monotonic() - started)
    code = job.wait()
    outcome.hangs += code is None
    for process in (second, head):
        process.terminate()
    outcome.orphans += job.left()
    shutil.rmtree(temporary, ignore_errors=True)
    again = job.log.count("it starts again from its last checkpoint")
    outcome.ends = f"starts again by itself {again} times, exit {code}"
    return bench.compare(outcome, job, *words)


def pool_killed(bench: Bench) -> Outcome:
    """Kill the pool in 1 of 16 rollouts, chosen by a digest of the response; the other rollouts must be graded."""
    outcome = Outcome("a reward file that kills the pool in 1 of 16", "from the start", trials=1)
    job = bench.job(outcome.name, 5 * BATCH, "--reward.remote_url", "reward.py")
    file = job.folder / "reward.py"
    file.write_text(KILLS_POOL)
    code = job.run(outcome, "--reward.remote_url", str(file))
    killers = {*map(json.loads, (job.folder / "killers.jsonl").read_text().splitlines())}
    rows = [row for path in (job.folder / "ckpt" / "rollouts").glob("step*.parquet") for row in read_rollouts(path)[0]]
    failed = [row for row in rows if row.reward is None]
    own = sum(row.prompt + row.response in killers for row in rows)
    others = sum(row.prompt + row.response not in killers for row in failed)
    outcome.ends = f"{own} of {len(rows)} rollouts kill it, {len(failed)} failed, {others} of them others, exit {code}"
    return outcome


KILLS_POOL = """
import hashlib, json, os, pathlib, signal

def reward_func(queries, prompts, labels):
    if hashlib.sha256(queries[0].encode()).digest()[0] % 16 == 0:
        with pathlib.Path(__file__).with_name("killers.jsonl").open("a") as file:
            file.write(json.dumps(queries[0]) + "\\n")
        os.kill(os.getppid(), signal.SIGKILL)
    return {"rewards": float(len(queries[0]) % 2)}
"""
TOKENS = ("--rollout.max_tokens_per_gpu", "600", "--train.max_tokens_per_gpu", "600")
GRPO = ("--algo.advantage.estimator", "group_norm", "--credit.dump_rollouts_every", "0")
ROWS: dict[str, Row] = {
    "run": ended("every process killed", "at random", at_random, Job.kill),
    "run_saving": ended("every process killed", "inside a save", in_a_save, Job.kill),
    "run_syncing": ended("every process killed", "inside a weight sync", in_a_sync, Job.kill),
    "other_seed": other_seed,
    "driver": ended("driver killed", "at random", at_random, lambda job: kill(job.process)),
    "sigterm": ended("SIGTERM to the driver", "at random", at_random, lambda job: job.process.terminate()),
    "sigterm_all": ended(
        "SIGTERM to every process", "at random", at_random, lambda job: [each.terminate() for each in job.below()]
    ),
    "engine": survived("rollout engine's actor killed", "at random", "ray::RolloutRayActor"),
    "engine_core": survived("vLLM's core killed", "at random", ENGINE_CORE),
    "engine_syncing": survived("vLLM's core killed", "inside a weight sync", ENGINE_CORE, in_a_sync),
    "pool": survived("reward pool killed", "at random", "ray::RewardPoolActor"),
    "rank": survived(
        "one of two actor ranks killed, ZeRO-3",
        "at random",
        "ray::ShearPolicyActor",
        words=(*TWO_RANKS, "--ds.zero_stage", "3"),
        share=0.5,
    ),
    "node": node,
    "finished": finished,
    "rest_fixed": rest("fixed batches, ZeRO-3", "--ds.zero_stage", "3"),
    "rest_dynamic": rest("dynamic batches", "--train.dynamic_batch_enable", *TOKENS),
    "rest_grpo": rest("group_norm", *GRPO),
    "pool_killed": pool_killed,
    **fault_table.ROWS,
}


def main() -> None:
    parser = script_parser(__doc__, help="write the rows to this JSON file; its other rows stay")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help="see --list")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    parser.add_argument("--trials", type=int, default=20, help="faults of a row with a random moment (default 20)")
    parser.add_argument("--prompts", type=int, default=400, help=f"prompts of such a job, {BATCH} a step (default 400)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments (default 0)")
    parser.add_argument("--folder", type=Path, help="folder to run the jobs in and keep (default: a temporary one)")
    args = parser.parse_args()
    if args.list:
        print("\n".join(ROWS))
        return
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans become our children, so we see them
    found = json.loads(args.output.read_text()) if args.output and args.output.exists() else {"rows": {}}
    found["environment"] = environment()
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(args.folder or Path(temporary), args.trials, args.seed, args.prompts)
        bench.folder.mkdir(parents=True, exist_ok=True)
        for name in args.rows:
            print(f"── {name}", flush=True)
            try:
                outcome = ROWS[name](bench)
            except subprocess.CalledProcessError:
                outcome = Outcome(name, "", ends="not tried: no file system can be mounted here")
            found["rows"][name] = asdict(outcome) | {"commit": commit()}
            print(json.dumps(found["rows"][name]), flush=True)
            if args.output:
                args.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
