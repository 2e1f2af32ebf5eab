"""Checks of rewards, agents and benchmarks: do they exist, can they run, and do their settings make sense?"""

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from openrlhf_shear.config.refusal import Finding, LineError, Note, Refusal, did_you_mean, refusal
from openrlhf_shear.config.secrets import REWARD_TOKEN
from openrlhf_shear.data.files import DataError, near_path
from openrlhf_shear.line.run import Run
from openrlhf_shear.rewards.files import FILES
from openrlhf_shear.rewards.function_workers import LateError, try_file
from openrlhf_shear.rewards.graders import GRADERS, NAMES
from openrlhf_shear.rewards.jail import JailError, find_jail
from openrlhf_shear.rewards.maths.answers import check_formats
from openrlhf_shear.rewards.settings import read_token
from openrlhf_shear.rewards.verdict import Failure, Verdict

_FLAG = "reward.remote_url"
_KINDS = ", ".join(NAMES)
_RESPONSE = "I do not know."  # response of the test call to a reward function
TRY_SECONDS = 20.0  # time limit to import the file, and again to answer
_REMEDIES = {
    Failure.TIMEOUT: "; --reward.timeout SECONDS allows more",
    Failure.WORKER_DIED: "; look for sys.exit in it",
    Failure.NO_DICT: '; use return {"rewards": NUMBER}',
}
_GPU_WORDS = ("CUDA", "NVIDIA")  # of torch, in the error of a file that needs a GPU: this process shows it none
_MESSAGES = "string indices must be integers"  # of `completion[0]["content"]`, TRL's form for chats
_NO_MODULE = "No module named"
_MODULE_REMEDY = "; install it, or put the folder that holds it on PYTHONPATH"
_GPU_REMEDY = "; a model that needs a GPU belongs behind a server (cli.serve_reward)"
_NO_ENTRY = ("401", "403")  # statuses of a server for a missing or wrong token
_MOST = 600  # characters of a file's error that a message quotes
_RANGES = {"reward.clip_range": "-10 10", "algo.dynamic_filtering_range": "0 1"}


def shaping(run: Run) -> Iterator[Finding]:
    """Check length penalties, the clip and the filter for settings that cannot work or have no effect."""
    buffer, longest = run.reward.overlong_buffer_len, run.rollout.max_new_tokens or run.data.max_len
    if buffer is not None and buffer > longest:
        flag = "rollout.max_new_tokens" if run.rollout.max_new_tokens else "data.max_len"
        problem = f"must not exceed {flag} ({longest}), or every response is overlong"
        yield run.refusal("reward.overlong_buffer_len", problem, f"e.g. {longest // 4}")
    for flag in ("reward.clip_range", "algo.dynamic_filtering_range"):
        low, high = run.flags[flag]
        if not low < high:
            yield run.refusal(flag, "must be LOW HIGH with LOW < HIGH", f"e.g. {_RANGES[flag]}")
    yield from _filter(run)


def _filter(run: Run) -> Iterator[Finding]:
    """Refuse a filter range that excludes every possible mean of a group's rewards, if rewards are 0 and 1."""
    flag, size = "algo.dynamic_filtering_range", run.rollout.n_samples_per_prompt
    low, high = run.flags[flag]
    if not run.algo.dynamic_filtering_enable or run.flags[_FLAG] not in GRADERS:
        return
    if not any(low < right / size < high for right in range(size + 1)):
        problem = f"holds no mean of {size} rewards of {run.flags[_FLAG]}, which are 0 and 1, so every group is dropped"
        yield run.refusal(flag, problem, "e.g. 0 1")


def code(run: Run) -> Iterator[Finding]:
    agent = run.train.agent_func_path
    if agent:
        if not agent.endswith(".py") or not os.path.isfile(agent):
            yield run.refusal("train.agent_func_path", "must be a Python file", "the path of an existing .py file")
        else:
            yield from _agent(agent)
    elif run.reward.remote_url:
        yield from _graders(run, run.reward.remote_url)


def _agent(file: str) -> Iterator[Refusal]:
    """Refuse a file that is no Python, or that names no AgentExecutor; it is not run, which takes an engine."""
    flag, name = "train.agent_func_path", "AgentExecutor"
    try:
        source = Path(file).read_bytes()
        names = compile(source, file, "exec", dont_inherit=True).co_names  # of the module, not of its functions
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte
        yield refusal(flag, f"is no Python file ({error})", file, f"python {file} to see the error")
        return
    if name not in names and b"import *" not in source:
        yield refusal(flag, f"has no {name}", file, f"class {name}(MultiTurnAgentExecutor), as in examples/agents")


def _graders(run: Run, url: str) -> Iterator[Finding]:
    if all(part.startswith(("http://", "https://")) for part in url.split(",")):
        yield from _servers(url)
        yield from _token(run)
    elif url in GRADERS:
        if not run.data.label_key:
            yield run.refusal("data.label_key", f"is needed: --reward.remote_url {url} grades against it", "a column")
        if GRADERS[url].start_workers:
            yield from _jailed(run, _FLAG)
        try:
            check_formats(run.reward.answer_format.split(","))
        except ValueError as error:
            yield Refusal("reward.answer_format", str(error))
    elif not url.endswith(".py"):
        near, what = did_you_mean(url.casefold(), NAMES) or near_path(url), "is no reward"
        if os.path.isdir(url):
            what = "is a folder"
        elif re.fullmatch(r"[\w.-]+:\d+(/.*)?", url):
            what = "is an address without http://"
        yield run.refusal(_FLAG, what, f"{_KINDS}, the path of a .py file{near}, or http:// addresses")
    elif "," in url and all(part.strip().endswith(".py") for part in url.split(",")) and not os.path.isfile(url):
        yield run.refusal(_FLAG, "takes one file", "a file whose reward_func adds up the rewards of the others")
    elif not os.path.isfile(url):
        yield run.refusal(_FLAG, "names a file that is not there", f"the path of a .py file{near_path(url)}")


def suite(run: Run) -> Iterator[Finding]:
    """Load the first question of each benchmark, and check that its grader can run."""
    if not run.eval.suite:
        return
    from openrlhf_shear.evaluation.suite import suite_benchmarks
    from openrlhf_shear.sampling.benchmarks import load_questions

    folder = Path(run.eval.data_dir) if run.eval.data_dir else None
    flags = ("eval.suite", "reward.remote_url", "data.input_key", "data.label_key")
    try:
        for benchmark in suite_benchmarks(*(run.flags[flag] for flag in flags)):
            load_questions(benchmark, folder, limit=1)
    except (DataError, ValueError) as error:
        yield Refusal("eval.suite", str(error))
    yield from _jailed(run, "eval.suite")


def _jailed(run: Run, flag: str) -> Iterator[Refusal]:
    try:
        find_jail(run.reward.allow_unsandboxed)
    except JailError as error:
        yield Refusal(f"{flag} {run.flags[flag]}", str(error))


def _servers(urls: str) -> Iterator[Finding]:
    for number, url in enumerate(urls.split(","), 1):
        try:
            parts = urlsplit(url)
            there = parts.hostname and (parts.port is None or parts.port > 0)
        except ValueError:  # an invalid port, or an unclosed bracket
            there = False
        if not there:
            yield refusal(_FLAG, f"has no address for server {number}", url, "e.g. http://host:5000/get_reward")


def _token(run: Run) -> Iterator[Refusal]:
    file = run.reward.token_file
    try:
        read_token(file)
    except ValueError as error:
        yield Refusal(f"reward.token_file {file}" if file else REWARD_TOKEN, str(error))


def threshold(run: Run) -> Iterator[Finding]:
    """Refuse a threshold outside the rewards' range, if the range is known."""
    flag, reward = "credit.correct_threshold", run.flags[_FLAG]
    if run.has_rule and reward in GRADERS and not 0 < run.flags[flag] <= 1:
        problem = f"makes all rollouts alike: rewards of {reward} are 0 and 1, and rewards of at least this are correct"
        yield run.refusal(flag, problem, "e.g. 0.5")


def try_reward(run: Run, row: str, prompt: str, label: object) -> Iterator[Finding]:
    """Import a user's file in another process, and ask it for the reward of a test response to `prompt`.

    Refuse a file whose `reward_func` gives no reward. `row` names the prompt's row in messages.
    """
    file = run.flags[_FLAG] or ""
    if file.startswith(("http://", "https://")):
        if run.dry_run:  # a server may start together with a run
            yield from _ask_servers(run, row, prompt, label)
        return
    if not file.endswith(".py"):
        return
    unlabelled = "" if run.data.label_key else "; without --data.label_key every label is ''"
    verdict, of_label = ask_file(_FLAG, file, run.reward.timeout, row, prompt, label, unlabelled)
    score = verdict.score
    yield from _tell_scores(run, file, score, label, of_label)
    yield from _question_threshold(run, file, verdict, of_label)
    answers = isinstance(label, str) and label[:1] not in ("", "{", "[")  # rather than tests of a program
    if (
        run.has_rule
        and answers
        and file not in FILES.values()
        and of_label.failure is None
        and of_label.score == score < run.credit.correct_threshold
    ):
        yield from _question_answer(run, file, prompt, label, score)
    yield from _question_range(run, file, score)


def ask_file(
    flag: str, file: str, timeout: float, row: str, prompt: str, label: object, hint: str = ""
) -> tuple[Verdict, Verdict]:
    """Return a reward file's verdicts on a test response to `prompt`, and on the label as the response.

    Raises LineError: the file does not load, or gives no reward for the test response.
    """
    seconds = max(TRY_SECONDS, timeout)
    try:
        verdicts = try_file(file, seconds, [(prompt + response, prompt, label) for response in (_RESPONSE, str(label))])
    except (ImportError, RuntimeError) as error:
        late = Failure.TIMEOUT if isinstance(error, LateError) else None
        raise LineError(Refusal(flag, f"{_short(str(error))}{_remedy(late, str(error))}")) from error
    if len(verdicts) == 2:
        return verdicts[0], verdicts[1]
    verdict = verdicts[0]
    message = _short(f"{verdict.why} ({verdict.detail})")
    sentence = f"the reward_func of {file} gives no reward for {row} with the response {_RESPONSE!r}"
    raise LineError(Refusal(flag, f"{sentence}: {message}{hint}{_remedy(verdict.failure, message)}"))


def _ask_servers(run: Run, row: str, prompt: str, label: object) -> Iterator[Finding]:
    """Ask each server once, and refuse those that give no reward."""
    from openrlhf_shear.rewards.client import RewardClient  # late: aiohttp

    async def verdict_of(url: str) -> Verdict:
        client = RewardClient(url, min(run.reward.timeout or TRY_SECONDS, TRY_SECONDS), 0, token)
        try:
            return await client.grade(prompt + _RESPONSE, prompt, label)
        finally:
            await client.close()

    try:
        token = read_token(run.reward.token_file)
    except ValueError:  # `_token` tells
        return
    for url in run.flags[_FLAG].split(","):
        verdict = asyncio.run(verdict_of(url))
        message = _short(f"{verdict.why} ({verdict.detail})")
        if verdict.failure is Failure.SERVER_ANSWERED and verdict.which in _NO_ENTRY:
            wrong = "is not the server's token" if token or "@" in url else "is needed, since the server wants a token"
            remedy = f"its file, or the environment's {REWARD_TOKEN}"
            yield Refusal("reward.token_file", f"{wrong}: {message}", use=remedy)
        elif verdict.failure is not None:
            remedy = "a running server (cli.serve_reward), and its token in --reward.token_file"
            yield Refusal(_FLAG, f"a server gives no reward for {row}: {message}", use=remedy)


def _tell_scores(run: Run, file: str, score: float, label: object, of_label: Verdict) -> Iterator[Note]:
    """Tell a dry run's two scores and the label's type; warn if the label as response has no score.

    Also warn of labels that no comparison with a text can match.
    """
    if label == "":
        return
    kind, name, shown = type(label).__name__, Path(file).name, repr(label)[:40]
    if warning := label_warning(file, label, of_label):
        yield Note(f"{warning}; rollouts with such responses fail")
        return
    got = of_label.score
    scores = f"{name} gives {score:g} to {_RESPONSE!r} and {got:g} to the label {shown} as response; labels are {kind}"
    if kind in ("int", "float", "bool") and got == score < run.credit.correct_threshold:
        yield Note(f"{scores}, and response == label is never true; use str(label), or a column of texts")
    elif run.dry_run:
        yield Note(scores, "Info")


def label_warning(file: str, label: object, of_label: Verdict) -> str | None:
    """Return a warning of a reward file that gives no score to the label as response; None if it gives one."""
    if label == "" or of_label.failure is None:
        return None
    why = _short(f"{of_label.why} ({of_label.detail})")
    return f"{Path(file).name} gives no score to the label {repr(label)[:40]} as response: {why}"


def _question_answer(run: Run, file: str, prompt: str, label: str, score: float) -> Iterator[Note]:
    """Ask about a reward that is the same for the label as for any response, also in a box."""
    (boxed,) = try_file(file, max(TRY_SECONDS, run.reward.timeout), [(rf"{prompt}\boxed{{{label}}}", prompt, label)])
    if boxed.failure is None and boxed.score == score and run.credit.correct_reward is None:
        message = f"{Path(file).name} gives {score:g} to {_RESPONSE!r}, and to the label {label[:40]!r} as response"
        yield Note(f"{message}, alone and in \\boxed{{}}: if a right answer has no other form, nothing is correct")


def _question_threshold(run: Run, file: str, verdict: Verdict, of_label: Verdict) -> Iterator[Finding]:
    """Ask about a threshold on one side of the two scores, or far from them; refuse a reward that is not there."""
    if not run.has_rule:
        return
    limit, name = run.credit.correct_threshold, run.credit.correct_reward
    values = [each.score if name is None else each.extra_logs.get(name) for each in (verdict, of_label)]
    if name is not None and values[0] is None:
        known = ", ".join(verdict.extra_logs) or "none"
        problem = f"is no entry of the extra_logs of {file}, which have {known}"
        yield run.refusal("credit.correct_reward", problem, "one of these, or leave it out")
        return
    low, high = values[0], values[1] if of_label.failure is None else None
    what = f"{file} gives {f'{name} ' * bool(name)}{low:g} to {_RESPONSE!r}"
    if high is not None and high != low and (low >= limit) == (high >= limit):
        side = "both at least" if low >= limit else "both below"
        message = f"{what} and {high:g} to the label as response, {side} --credit.correct_threshold {limit:g}"
        remedy = f"use a threshold between them, e.g. {(low + high) / 2:g}, or --credit.correct_reward NAME"
        yield Note(f"{message}: both responses count alike, and the rule would compare nothing; {remedy}")
    elif low >= limit or limit > 1 >= abs(low):
        side = "at least" if low >= limit else "far from"
        message = f"{what}, {side} --credit.correct_threshold {limit:g}"
        yield Note(f"{message}, the least score of a correct rollout; is that intended?")


def _question_range(run: Run, file: str, score: float) -> Iterator[Note]:
    low, high = run.algo.dynamic_filtering_range
    if run.algo.dynamic_filtering_enable and not low <= score <= high:
        message = f"{file} gives {score:g} to {_RESPONSE!r}, outside --algo.dynamic_filtering_range {low:g} {high:g}"
        remedy = "a group passes if its mean score is inside; for rewards of -1 and 1 use -1 1"
        yield Note(f"{message}: {remedy}")


def _short(text: str) -> str:
    return " ".join(text.split())[:_MOST]


def _remedy(failure: Failure | None, message: str) -> str:
    if failure is Failure.RAISED and _MESSAGES in message:
        return "; completions are texts here, not messages: use completion for completion[0]['content']"
    if _NO_MODULE in message:
        return _MODULE_REMEDY
    return _REMEDIES.get(failure) or (_GPU_REMEDY if any(word in message for word in _GPU_WORDS) else "")
