"""What a run's screen shows of what its processes print, and what its log keeps."""

import os
import pty
import subprocess
import sys
import textwrap
from argparse import Namespace
from contextlib import suppress

import pytest

from openrlhf_shear.train.screen.console import Console
from openrlhf_shear.train.screen.story import Story
from openrlhf_shear.train.start import attempts

PRINTED = """\
INFO 11-22 22:33:17 config.py:12] vLLM has many lines of this kind
\x1b[36m(ShearTrainer pid=12, ip=10.0.0.1)\x1b[0m [openrlhf_shear] resuming after step 3
(ShearTrainer pid=12) [openrlhf_shear:now] sampling and grading, prompts 3/16
(RolloutActor pid=7) WARNING 11-22 22:33:17 [cpu.py:12] vLLM's own warning
(PolicyActor pid=8) WARNING 11-22 22:33:17 strategy.py:96] checkpoint passed over: global_step8 is cut
(ShearTrainer pid=12) ERROR 11-22 22:33:17 trainer.py:278] no update: no rollout has a reward
"""
SHOWN = [
    "resuming after step 3",
    "sampling and grading, prompts ...",
    "warning: checkpoint passed over: global_step8 is cut",
    "error: no update: no rollout has a reward",
]
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1\nray.exceptions.ActorDiedError: a node is gone\n'
ENDS = {
    "well": ("", 0, []),
    "said": ("[openrlhf_shear] the run ended: rewards are lost\n", 3, ["the run ended: rewards are lost"]),
    "error": (TRACEBACK, 1, ["the run ended with exit code 1: ray.exceptions.ActorDiedError: a node is gone"]),
    "killed": ("", 137, ["the run ended with exit code 137"]),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_screen_has_what_is_for_people_and_the_log_everything(tmp_path, monkeypatch, capsys, end):
    monkeypatch.setenv("OPENRLHF_SHEAR_REWARD_TOKEN", "a secret token")
    text, code, told = ENDS[end]
    log = tmp_path / "logs" / "train.log"
    console = Console(log, ["train", "--reward.remote_url", "http://a secret token@host"])
    script = f"import os, sys; sys.stderr.write({PRINTED + text!r}); sys.stderr.flush(); os._exit({code})"
    assert attempts.supervise([sys.executable, "-c", script], 0, console) == code
    assert capsys.readouterr().out.splitlines() == [*SHOWN, *told, f"log       {log}"]
    kept = log.read_text()
    assert "vLLM has many lines" in kept and "sampling and grading" not in kept and "secret" not in kept.splitlines()[0]
    assert text in kept


def test_a_screen_and_a_disk_that_are_gone_do_not_stop_the_run(tmp_path):
    """More lines than a pipe holds, to a closed pipe and to /dev/full."""
    run = "for i in range(20000): print(f'[openrlhf_shear] {i}')\nopen('ended', 'w')"
    watch = (
        "import sys\nfrom pathlib import Path\nfrom openrlhf_shear.train.start import attempts\n"
        "from openrlhf_shear.train.screen.console import Console\n"
        f"console = Console(Path('log'), ['x'])\nconsole._file = open('/dev/full', 'a', buffering=1)\n"
        f"sys.exit(attempts.supervise([sys.executable, '-c', {run!r}], 0, console))"
    )
    read, write = os.pipe()
    os.close(read)
    subprocess.run([sys.executable, "-c", watch], stdout=write, stderr=subprocess.DEVNULL, cwd=tmp_path, timeout=100)
    os.close(write)
    assert (tmp_path / "ended").exists()


def test_a_reader_that_leaves_a_run_is_told_once_and_the_run_ends_as_it_would(tmp_path):
    """As in `shear-train ... | head -3`, with a command in place of the training."""
    run = "import time\nfor i in range(300): print(f'[openrlhf_shear] {i}', flush=True), time.sleep(0.002)"
    watch = (
        "import sys\nfrom pathlib import Path\nfrom openrlhf_shear.line import frame\n"
        "from openrlhf_shear.train.start import attempts\nfrom openrlhf_shear.train.screen.console import Console\n"
        "@frame.until_the_reader_leaves()\ndef main():\n"
        f"    sys.exit(attempts.supervise([sys.executable, '-c', {run!r}], 0, Console(Path('log'), ['x'])))\nmain()"
    )
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
    with subprocess.Popen([sys.executable, "-c", watch], **piped) as started:
        shown = [started.stdout.readline() for _ in range(3)]
        started.stdout.close()
        told = started.stderr.read()
    assert shown == ["0\n", "1\n", "2\n"] and started.returncode == 0
    assert told == "[Info] the reader of this output has left; the run goes on, and log has its output\n"
    assert "299" in (tmp_path / "log").read_text()


def status(**other) -> dict:
    return {
        **{"rollout/reward_mean": 0.456, "shear/mixed_groups": 0.875, "rollout/response_length_mean": 80.4},
        **{"policy_loss": -0.00294, "shear/credit_share": 0.041, "timing/step_total": 4.0},
        **{"update/optimizer_steps": 2.0, "update/skipped_steps": 0.0, "reward_failed": 0.0} | other,
    }


def lines(capsys) -> list[str]:
    return [line.removeprefix("[openrlhf_shear] ") for line in capsys.readouterr().out.splitlines()]


def settings(tmp_path) -> Namespace:
    ckpt = Namespace(path=str(tmp_path / "ckpt"), output_dir="RUN/model")
    return Namespace(ckpt=ckpt, logger=Namespace(tensorboard_dir="RUN/tb"), dump_rollouts_every=5)


def test_a_line_a_step_and_where_everything_is(tmp_path, capsys):
    story = Story(settings(tmp_path), 40)
    mine = {"my_rule/reward_mean": 7.0, "other/credit_share": 0.9, "my_rule/skipped_steps": 3.0, "x/policy_loss": 5.0}
    story.step(12, mine | status() | mine, "shear")
    story.step(13, status(**{"reward_failed": 0.25, "update/skipped_steps": 1.0, "timing/step_total": 6.0}), "shear")
    story.evaluated(13, {"eval_x_pass1": 0.51234, "eval_x_response_length_mean": 80.0, "aime24/pass@8": 0.1})
    assert lines(capsys) == [
        "12/40  reward 0.46  mixed 0.88  len 80  loss -0.0029  credit 4%  4.0 s  ETA 1:52",
        "13/40  reward 0.46  mixed 0.88  len 80  loss -0.0029  credit 4%  NO REWARD 25%  SKIPPED UPDATES 1  6.0 s  "
        "ETA 2:15",
        "evaluation at step 13: x_pass1 0.512, aime24/pass@8 0.100",
    ]
    ledger = {"dispatched": 32, "trained": 20, "filtered": 4, "failed": {"raised KeyError": 8}, "waiting": 0}
    story.ended({"global_step": 13, "ledger": ledger}, False, False)
    assert lines(capsys) == [
        "ended after step 13 of 40: 2 steps in this attempt with 4 optimizer steps, which changed NO WEIGHT",
        "rollouts  20 trained of 32 sampled (4 filtered, 8 raised KeyError)",
        "resume    no checkpoint was made (--ckpt.save_steps N makes one every N steps)",
        "curves    tensorboard --logdir RUN/tb",
        "report    python -m openrlhf_shear.cli.report RUN/tb --output DIR",
        f"page      shear-rollouts {tmp_path}/ckpt --output rollouts.html",
    ]
    (tmp_path / "ckpt" / "_actor").mkdir(parents=True)
    story.ended({"global_step": 13}, True, True)
    *said, last = lines(capsys)
    assert said[:3] == [
        "finished after step 13 of 40: 2 steps in this attempt with 4 optimizer steps",
        f"resume    the same line with --ckpt.load_enable, from {tmp_path}/ckpt",
        "curves    tensorboard --logdir RUN/tb",
    ]
    assert last == "[openrlhf_shear:now] saving the model", "the driver names it once it is saved"


def test_a_terminal_shows_what_is_being_done(tmp_path):
    """Below the lines that stay there is one that changes: not in the log, and gone at the end."""
    run = "import time; print('[openrlhf_shear:now] sampling, prompts 3/16', flush=True); time.sleep(1); "
    run += "print('[openrlhf_shear] 1/2  reward')"
    watch = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from openrlhf_shear.train.start import attempts
        from openrlhf_shear.train.screen.console import Console
        attempts.supervise([sys.executable, "-c", {run!r}], 0, Console(Path({str(tmp_path / "log")!r}), ["x"]))
    """)
    terminal, screen = pty.openpty()
    there = os.environ | {"TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-c", watch], stdout=screen, stderr=screen, env=there):
        os.close(screen)
        shown = b""
        with suppress(OSError):  # Linux says so at the end
            while some := os.read(terminal, 4096):
                shown += some
    os.close(terminal)
    text = shown.decode()
    assert "sampling, prompts" in text and "3/16" in text and "1/2  reward" in text
    assert text.rindex("log       ") > text.rindex("sampling")
    assert "sampling" not in (tmp_path / "log").read_text()
