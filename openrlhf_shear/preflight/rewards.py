"""What gives rewards: whether it is there and can be run, and the numbers that say how."""

import os
import sys
from urllib.parse import urlsplit

from openrlhf_shear.config.names import is_rule
from openrlhf_shear.config.secrets import REWARD_TOKEN
from openrlhf_shear.data.files import near_path
from openrlhf_shear.preflight.refusal import ESTIMATOR, Values, refuse
from openrlhf_shear.rewards import settings
from openrlhf_shear.rewards.extra_logs import renamed
from openrlhf_shear.rewards.function_workers import FunctionWorkers
from openrlhf_shear.rewards.jail import JailError, find_jail
from openrlhf_shear.rewards.limits import named_limit
from openrlhf_shear.rewards.tokens import read_token

_FLAG = "reward.remote_url"
_RESPONSE = "I do not know."  # that a reward function is tried with
_TRY_SECONDS = 20.0  # to import it, and for its answer
_REMEDIES = {
    "took longer than": "--reward.timeout SECONDS allows more",
    "CUDA": "a model that needs a GPU belongs behind a server (cli.serve_reward)",
    "NVIDIA": "a model that needs a GPU belongs behind a server (cli.serve_reward)",
    "returned no dict": 'use return {"rewards": NUMBER}',
}
_MOST = 600  # characters of what a file says
_RANGES = {"reward.clip_range": "-10 10", "algo.dynamic_filtering_range": "0 1"}


def shaping(values: Values) -> None:
    """Length penalties, the clip and the filter: what could never work, or do nothing."""
    buffer, longest = values["reward.overlong_buffer_len"], values["rollout.max_new_tokens"] or values["data.max_len"]
    if buffer is not None and buffer > longest:
        flag = "rollout.max_new_tokens" if values["rollout.max_new_tokens"] else "data.max_len"
        problem = f"must not exceed {flag} ({longest}), or every response is overlong"
        refuse("reward.overlong_buffer_len", problem, buffer, f"e.g. {longest // 4}")
    if buffer is None and values["reward.overlong_penalty_factor"] != 1:
        told = "--reward.overlong_penalty_factor has no effect without --reward.overlong_buffer_len"
        print(f"[Warning] {told}", file=sys.stderr)
    for flag in ("reward.clip_range", "algo.dynamic_filtering_range"):
        low, high = values[flag]
        if not low < high:
            refuse(flag, "must be LOW HIGH with LOW < HIGH", (low, high), f"e.g. {_RANGES[flag]}")
    _filter(values)


def _filter(values: Values) -> None:
    """A range that no mean of a group's rewards can lie in, where these are 0 and 1."""
    flag, size = "algo.dynamic_filtering_range", values["rollout.n_samples_per_prompt"]
    low, high = values[flag]
    if not values["algo.dynamic_filtering_enable"] or values[_FLAG] not in settings.BUILT_IN:
        return
    if not any(low < right / size < high for right in range(size + 1)):
        problem = f"holds no mean of {size} rewards of {values[_FLAG]}, which are 0 and 1: every group is dropped"
        refuse(flag, problem, (low, high), "e.g. 0 1")


def graders(values: Values, url: str) -> None:
    if all(part.startswith(("http://", "https://")) for part in url.split(",")):
        _servers(url)
        _token(values)
    elif url in settings.BUILT_IN:
        if not values["data.label_key"]:
            refuse("data.label_key", f"is needed: --reward.remote_url {url} grades against it", None, "a column")
        jailed(values, f"reward.remote_url {url}")
    elif not url.endswith(".py"):
        refuse(_FLAG, "is no reward", url, "math, code, the path of a .py file, or http:// addresses")
    elif not os.path.isfile(url):
        refuse(_FLAG, "names a file that is not there", url, f"the path of a .py file{near_path(url)}")


def jailed(values: Values, what: str) -> None:
    try:
        find_jail(values["reward.allow_unsandboxed"])
    except JailError as error:
        raise ValueError(f"{what}: {error}{named_limit()}") from error


def _servers(urls: str) -> None:
    for number, url in enumerate(urls.split(","), 1):
        try:
            parts = urlsplit(url)
            there = parts.hostname and (parts.port is None or parts.port > 0)
        except ValueError:  # a port that is none, a bracket that is not closed
            there = False
        if not there:
            refuse(_FLAG, f"has no address as its server {number}", url, "e.g. http://host:5000/get_reward")


def _token(values: Values) -> None:
    file = values["reward.token_file"]
    try:
        read_token(file)
    except ValueError as error:
        raise ValueError(f"{f'reward.token_file {file}' if file else REWARD_TOKEN}: {error}") from error


def threshold(values: Values) -> None:
    """Where the rewards' range is known."""
    flag, reward = "shear.correct_threshold", values[_FLAG]
    if is_rule(values[ESTIMATOR]) and reward in settings.BUILT_IN and not 0 < values[flag] <= 1:
        problem = f"makes all rollouts alike: rewards of {reward} are 0 and 1, and what is at least this is correct"
        refuse(flag, problem, values[flag], "e.g. 0.5")


def try_reward(values: Values, row: str, prompt: str, label: object) -> None:
    """A user's file is imported, in a process of its own, and asked for the reward of one response to `prompt`.

    Raises:
        ValueError: it is no file with a `reward_func` that gives one; says on which `row`.
    """
    file = values[_FLAG] or ""
    if not file.endswith(".py"):
        return
    seconds = max(_TRY_SECONDS, values["reward.timeout"])
    with FunctionWorkers(file, seconds, 1, start_seconds=seconds) as workers:
        try:
            workers.check()
        except (ImportError, RuntimeError) as error:
            raise ValueError(f"{_FLAG}: {_short(str(error))}{_remedy(str(error))}") from error
        verdict = workers.grade(prompt + _RESPONSE, prompt, label)
    if verdict.failure:
        told = _short(f"{verdict.failure} ({verdict.detail})")
        unlabelled = "" if values["data.label_key"] else "; without --data.label_key every label is ''"
        raise ValueError(
            f"{_FLAG}: the reward_func of {file} gives no reward for {row} with the response {_RESPONSE!r}: {told}"
            f"{unlabelled}{_remedy(told)}"
        )
    _question_threshold(values, file, verdict.score)
    _question_range(values, file, verdict.score)
    for name in verdict.extra_logs:
        if renamed(name) != name:
            told = f"extra_logs of {file} has {name}, which is a metric of training"
            print(f"[Warning] {told}; it is logged as {renamed(name)}", file=sys.stderr)


def _question_threshold(values: Values, file: str, score: float) -> None:
    limit = values["shear.correct_threshold"]
    if is_rule(values[ESTIMATOR]) and (score >= limit or limit > 1 >= abs(score)):
        side = "at least" if score >= limit else "far from"
        told = f"{file} gives {score:g} to {_RESPONSE!r}, {side} --shear.correct_threshold {limit:g}"
        print(f"[Warning] {told}, from which on a rollout counts as correct; is that meant?", file=sys.stderr)


def _question_range(values: Values, file: str, score: float) -> None:
    low, high = values["algo.dynamic_filtering_range"]
    if values["algo.dynamic_filtering_enable"] and not low <= score <= high:
        told = f"{file} gives {score:g} to {_RESPONSE!r}, outside --algo.dynamic_filtering_range {low:g} {high:g}"
        remedy = "a group passes if its mean score is inside; for rewards of -1 and 1 use -1 1"
        print(f"[Warning] {told}: {remedy}", file=sys.stderr)


def _short(text: str) -> str:
    return " ".join(text.split())[:_MOST]


def _remedy(told: str) -> str:
    return next((f"; {remedy}" for words, remedy in _REMEDIES.items() if words in told), "")
