"""Three secrets on a command line and three in the environment: none is ever printed or written."""

import json
import os
import pickle
import random
import re
from pathlib import Path
from types import SimpleNamespace

import openrlhf_on_cpu  # noqa: F401
import pytest
from command_lines import refusal

from openrlhf_shear.cli import train_ppo_ray
from openrlhf_shear.config import secrets
from openrlhf_shear.config.secrets import Secret, hidden
from openrlhf_shear.train.start import launch

PASSWORD, QUERY, KEY = "url-password-0123456789", "url-query-0123456789", "0123456789abcdef" * 2 + "wandbkey"
HELD = {name: f"held-in-{name.lower()}-0123456789" for name in secrets.VARIABLES}
URLS = f"http://shear:{PASSWORD}@one:5000/get_reward?key={QUERY},https://two/get_reward?key={QUERY}"


@pytest.fixture
def environment(monkeypatch):
    for name, value in HELD.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def args(environment, job):
    """OpenRLHF's nested arguments of a line with secrets, as a worker gets them."""
    from openrlhf.utils.config import hierarchize

    line = job("--logger.tensorboard_dir board --ckpt.path ckpt", None)
    line += ["--reward.remote_url", URLS, "--logger.wandb.key", KEY, "--logger.wandb.run_name", "run"]
    nested = hierarchize(train_ppo_ray.parse(line))
    nested.reward.remote_url = nested.reward.remote_url.split(",")  # its main does
    return pickle.loads(pickle.dumps(nested))


def told(text: str) -> list[str]:
    return [secret for secret in (PASSWORD, QUERY, KEY, *HELD.values()) if secret in text]


def written(folder: Path) -> str:
    return "".join(file.read_text(errors="replace") for file in folder.rglob("*") if file.is_file())


def test_the_secrets_themselves_reach_their_users(args):
    assert args.logger.wandb.key == KEY and ",".join(args.reward.remote_url) == URLS


def test_arguments_are_printed_without_them(args, capsys):
    from openrlhf.utils.deepspeed import DeepspeedStrategy

    DeepspeedStrategy.print(SimpleNamespace(is_rank_0=lambda: True), args, vars(args), str(args.reward))
    said = capsys.readouterr()
    assert told(said.out + said.err) == [] and "remote_url=['http://***@one:5000/get_reward?***'" in said.out
    assert "key='***'" in said.out


def test_wandb_writes_none(args, monkeypatch, tmp_path):
    from openrlhf.utils.logging_utils import WandbLogger

    for name in ("WANDB_DIR", "HOME", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_API_KEY")  # so that upstream logs in with the line's
    (tmp_path / "wandb").mkdir()
    tracker = WandbLogger(args)
    tracker.log_train(1, {"reward": 1.0})
    tracker.close()
    assert told(written(tmp_path / "wandb")) == [] and "http://***@one:5000" in written(tmp_path / "wandb")


def test_the_facts_of_a_run_have_none(args, tmp_path):
    from openrlhf.utils.logging_utils import TensorboardLogger

    from openrlhf_shear.evaluation.suite import write_run_facts
    from openrlhf_shear.train.run.dump import RolloutDump
    from openrlhf_shear.train.run.tracking import Tracking

    write_run_facts(args)
    Tracking(args)
    board = TensorboardLogger(args)
    board.log_train(1, {"reward": 1.0, "generated_samples": ["a text", 1.0]})
    board.close()
    assert json.loads(Path("board/run.json").read_text())["task"] == "get_reward"
    everything = written(tmp_path) + repr(RolloutDump(args, "shear", None)._settings)
    assert "events.out" in str(list(tmp_path.rglob("*"))) and Path("ckpt/tracking.json").is_file()
    assert told(everything) == []


def test_settings_that_travel_to_the_engines_show_none(environment, job):
    settings = launch.reward_settings(train_ppo_ray.read([*job(), "--reward.remote_url", URLS]).run)
    assert settings.reward == URLS and settings.token == HELD[secrets.REWARD_TOKEN]
    assert told(repr(settings)) == []


@pytest.mark.parametrize(
    "text",
    [
        *(f"raised ValueError: {secret}" for secret in HELD.values()),
        f"HTTPConnectionPool(host='one', port=80): http://shear:{PASSWORD}@one/a",
        f"cannot reach 'https://one/a?b=1&key={QUERY}' now",
        f"{{'Authorization': 'Bearer {QUERY}', 'other': 'basic {QUERY}='}}",
        f"Authorization: Bearer\r\n {QUERY}\r\nOther: Basic\n\t{QUERY}=",
        repr(f"Authorization: Bearer\r\n {QUERY}\r\nOther: Basic\n\t{QUERY}="),
    ],
)
def test_failures_of_rewards_are_told_without_them(environment, text):
    from openrlhf_shear.rewards.verdict import of_texts

    verdict = of_texts(None, failure=text, detail=text)
    assert told(verdict.why + verdict.detail) == [] and "***" in verdict.detail


@pytest.mark.parametrize(
    "text", ["a plain text", "s3://bucket/key", "https://one:5000/a/b.jsonl", "me@example.org", "C:/a b"]
)
def test_texts_without_secrets_stay(text):
    assert hidden(text) == text


PIECES = ("x", ":", "/", "//", "@", "?", "#", " ", "'", "http://", "a:b@", "\n", "=", "x:", "x:@", "http://a?")


def test_any_text_is_hidden_as_by_patterns_that_need_not_be_fast():
    user, query = re.compile(r"(\w:/*)[^\s/?#'\"]*@"), re.compile(r"(\w://[^\s?#'\"]*)[?#][^\s'\"]+")
    chance = random.Random(0)
    for _ in range(5000):
        text = "".join(chance.choice(PIECES) for _ in range(chance.randint(1, 12)))
        assert hidden(text) == query.sub(r"\1?***", user.sub(r"\1***@", text)), text


@pytest.mark.parametrize("piece", [*PIECES, "Bearer ", "Bearer \\n"])
def test_no_text_makes_the_search_for_secrets_quadratic(piece):
    text = hidden("http://me:word@host\n" + piece * 1_000_000)  # hours, if it did: a server's answer holds as much
    assert text.startswith("http://***@host\n")


# ── On the command line ──


def test_a_secret_on_the_line_is_warned_about_and_not_repeated(environment, job, capsys):
    train_ppo_ray.parse([*job(), "--use_wandb", KEY, "--remote_rm_url", URLS])
    said = capsys.readouterr().err
    assert told(said) == []
    assert "show --logger.wandb.key to others; use --logger.wandb.key env with WANDB_API_KEY set" in said
    assert "show a token in --reward.remote_url to others; use --reward.token_file" in said


@pytest.mark.parametrize(("word", "key"), [("env", HELD["WANDB_API_KEY"]), ("key.txt", KEY), ("True", "True")])
def test_wandb_key_from_elsewhere(environment, job, capsys, word, key):
    line = job()
    Path("key.txt").write_text(f"{KEY}\n")
    assert vars(train_ppo_ray.parse([*line, "--logger.wandb.key", word]))["logger.wandb.key"] == key
    assert "list of jobs" not in capsys.readouterr().err


def test_reward_token_from_a_file_goes_before_the_environment(environment, job, capsys):
    line = [*job(), "--reward.remote_url", "http://one:5000/get_reward", "--reward.token_file", "token"]
    Path("token").write_text(f"{QUERY}\n")
    assert launch.reward_settings(train_ppo_ray.read(line).run).token == QUERY
    assert "list of jobs" not in capsys.readouterr().err


def test_a_key_that_is_to_come_from_an_empty_environment_is_refused(job, capsys, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    told = refusal(capsys, [*job(), "--logger.wandb.key", "env"])
    assert "has no WANDB_API_KEY: got 'env'; use" in told


def test_parts_of_a_secret_are_secrets():
    assert isinstance(Secret("a,b").split(",")[0], Secret) and os.fspath(Secret("a")) == "a"
