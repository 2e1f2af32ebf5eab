"""The reward pool: many grades at once, each independent of the others, and no process left behind."""

import asyncio
import re
import threading
from contextlib import closing
from dataclasses import replace
from types import ModuleType

import numpy
import pytest
from cases import table
from processes import children, descendants, descriptors, stats, wait_until

from openrlhf_shear.rewards.breaker import Breaker
from openrlhf_shear.rewards.crew import Job
from openrlhf_shear.rewards.function_workers import FunctionWorkers
from openrlhf_shear.rewards.graders import GRADERS
from openrlhf_shear.rewards.jail import JailError
from openrlhf_shear.rewards.labels import golds_of
from openrlhf_shear.rewards.pool import RewardPool, RewardSettings
from openrlhf_shear.rewards.responses import answer_of
from openrlhf_shear.rewards.signature import reward_function
from openrlhf_shear.rewards.verdict import Verdict, of_numbers


def test_gold_answers_of_a_label():
    for text in ("[1, 2]", "[oops", "[[1, 2], [3, 4]]", "no solution", "[" * 5000):
        assert golds_of(text) == text
    assert golds_of(7) == "7" and golds_of(27.0) == "27.0" and golds_of(["a", 1]) == ["a", "1"]
    assert golds_of(numpy.float64(0.5)) == "0.5" and golds_of('["1/2", 0.5]') == ["1/2", "0.5"]
    assert golds_of('["1/2", "0.5"]') == ["1/2", "0.5"]


NO_LABELS = (
    None,
    float("nan"),
    float("inf"),
    True,
    False,
    {},
    {"answer": "2"},
    "",
    " \n",
    [],
    ["2", None],
    [True],
    b"2",
)
NO_LABELS += ("[]", '["2", null]', "[null]", "[NaN]", "[1, true]", '["2", {}]', '["2", ""]', '["2", [3]]')


def test_what_is_no_label_fails_its_rollout_and_pays_for_nothing(needs_jail):
    for label in NO_LABELS:
        with pytest.raises(ValueError, match="a label must be an answer"):
            golds_of(label)
    asked = [(response, "", label) for label in NO_LABELS for response in (rf"\boxed{{{label}}}", r"\boxed{None}")]
    with closing(RewardPool(RewardSettings("math", cores=1))) as pool:
        for sample, verdict in zip(asked, pool.grade_all(asked), strict=True):
            assert (verdict.reward, verdict.why) == (None, "grader raised ValueError"), sample


ENDS = ("<\uff5cend\u2581of\u2581sentence\uff5c>", "[|endofturn|]", "<end_of_utterance>", "<eod>\n")


def test_special_tokens_at_the_end_are_no_part_of_an_answer():
    prompt = "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"
    for end in ("", "<|im_end|>", "<|eot_id|>\n", "</s>", "<eos><pad><pad>", " <|im_end|><|endoftext|> ", *ENDS):
        assert answer_of(prompt + "```python\nprint('<|im_end|>')\n```" + end, prompt).endswith("<|im_end|>')\n```")
        assert answer_of(prompt + end, prompt) == ""
    for other in ("[1,2]", "x[|a|]", "a < b>", "<|im end|> >", "1 <s", "x <|<|im_end|", "<|" + "x" * 65 + "|>"):
        assert answer_of(other, "") == other
    # A search from every "<|x" of a long response would take minutes, and so would a copy of it for each special token.
    assert len(answer_of(" <|x" * 250_000 + "<|im_end|>", "")) == 1_000_000
    assert answer_of("42" + "</s> " * 200_000, "") == "42"


FUNCTION = table("rewards", "FUNCTION")


@pytest.fixture
def function_file(tmp_path) -> str:
    (tmp_path / "reward.py").write_text(FUNCTION)
    return str(tmp_path / "reward.py")


def grade(file: str, *queries: str, timeout: float = 1.0, cores: int = 2) -> list[Verdict]:
    with closing(RewardPool(RewardSettings(file, cores=cores, timeout=timeout))) as pool:
        return list(pool.grade_all([(query, "", "1") for query in queries]))


def test_each_sample_has_its_own_fate(function_file):
    verdicts = grade(function_file, "good", "raise", "exit", "abort", "hang", "none", "good", timeout=3.0)
    assert [verdict.why for verdict in verdicts] == [
        *(None, "raised ValueError", "worker died", "worker died", "timeout", "returned None", None)
    ]
    assert verdicts[0] == verdicts[-1] == of_numbers(1.0, 1.0, {"length": 4.0})
    assert verdicts[1].detail == "bad sample, line 6"


@pytest.mark.parametrize("cores", [1, 2])
def test_a_worker_stays_until_it_hangs(function_file, cores):
    """Of two workers, the first may take both calls that hang, if the second starts late; a single one takes all."""
    verdicts = grade(function_file, *["pid"] * 4, "hang", "hang", *["pid"] * 4, cores=cores, timeout=3.0)
    first, later = ({verdict.reward for verdict in some} for some in (verdicts[:4], verdicts[6:]))
    assert len(first) <= cores and len(later) <= cores, "one a core"
    assert [verdict.failure for verdict in verdicts[4:6]] == ["timeout"] * 2
    assert cores > 1 or not first & later


# ── A file that hangs or dies in every call ──


def test_a_file_that_hangs_is_left_alone_after_twice_as_many_calls_as_cores(function_file):
    verdicts = grade(function_file, *["hang"] * 40, timeout=0.2)
    told = [verdict.failure for verdict in verdicts]
    assert told.count("timeout") in (4, 5), "two processes are at it when the fourth call has timed out"
    assert set(told[5:]) == {"reward file hangs"}
    assert "took longer than 0.2 s" in verdicts[-1].detail and "--reward.timeout allows" in verdicts[-1].detail


def test_a_file_that_dies_is_left_alone_and_one_that_raises_or_answers_in_between_is_not(function_file):
    told = [verdict.failure for verdict in grade(function_file, *["abort"] * 20, timeout=60.0)]
    assert told.count("worker died") in (4, 5) and told[-1] == "reward file dies"
    assert {verdict.why for verdict in grade(function_file, *["raise"] * 20, timeout=60.0)} == {"raised ValueError"}
    with FunctionWorkers(function_file, 60.0, 1) as workers:
        mixed = [workers.grade(query, "", "").why for query in ["exit", "exit", "raise"] * 5]
    assert mixed == ["worker died", "worker died", "raised ValueError"] * 5


def test_a_file_is_tried_again_after_the_cool_down(function_file):
    now = 0.0
    with FunctionWorkers(function_file, 60.0, 1, Breaker(2, clock=lambda: now)) as workers:
        told = [workers.grade(query, "", "1").failure for query in ("exit", "exit", "good")]
        now = 5.0
        told += [workers.grade(query, "", "1").failure for query in ("exit", "good")]
        now = 15.0
        told += [workers.grade(query, "", "1").failure for query in ("good", "good")]
    assert told == [*["worker died"] * 2, "reward file dies", "worker died", "reward file dies", None, None]


# ── What is found before training ──


def check(reward: str, **options) -> None:
    with closing(RewardPool(RewardSettings(reward, cores=1, **options))) as pool:
        pool.check()


def test_a_good_file_passes_and_its_process_stays_for_the_first_grade(function_file):
    check(function_file)
    before = children()
    with FunctionWorkers(function_file, 60.0, 1) as workers:
        workers.check()
        (loaded,) = children() - before
        assert workers.grade("pid", "", "").reward == loaded


FITTING = table("rewards", "FITTING")
UNFIT = table("rewards", "UNFIT")
UNLOADED = {
    "x = 1": ("but no function at all",),
    "def reward_func(queries, prompts, labels) ...": ("SyntaxError", "line 1"),
    "import no_such_module_anywhere": ("no_such_module_anywhere",),
}


def module_of(source: str) -> ModuleType:
    module = ModuleType("reward")
    exec(source, vars(module))
    return module


def test_functions_of_every_kind_that_can_be_called_fit():
    assert all(callable(reward_function(module_of(source))) for source in FITTING)


def test_a_function_that_does_not_fit_is_refused_with_what_the_file_has_and_the_remedy():
    for source, parts in UNFIT.items():
        with pytest.raises(ValueError, match=re.escape(parts[0])) as error:
            reward_function(module_of(source))
        assert all(part in str(error.value) for part in parts)


@pytest.mark.parametrize("source", UNLOADED)
def test_a_file_that_cannot_be_used_says_so_before_training_and_in_each_grade(tmp_path, source):
    path = tmp_path / "reward.py"
    path.write_text(source)
    with pytest.raises(ImportError) as error:
        check(str(path))
    for part in (str(path), *UNLOADED[source]):
        assert part in str(error.value)
    (verdict,) = grade(str(path), "one")
    assert verdict.failure == "file does not load" and str(error.value) == verdict.detail


def test_a_file_that_is_not_there_ends_or_hangs_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ImportError, match=r"none\.py is not there; use a path that every node"):
        check(str(tmp_path / "none.py"))
    (tmp_path / "reward.py").write_text("raise SystemExit")
    with pytest.raises(RuntimeError, match="ended its process while it was imported"):
        check(str(tmp_path / "reward.py"))
    monkeypatch.setattr("openrlhf_shear.rewards.function_workers.START_SECONDS", 0.5)
    (tmp_path / "reward.py").write_text("import time; time.sleep(3600)")
    with pytest.raises(RuntimeError, match=r"took longer than 0\.5 s to import"):
        check(str(tmp_path / "reward.py"))


def test_every_built_in_grader_is_tried_on_its_example(monkeypatch):
    for name, grader in GRADERS.items():
        check(name)
        broken = replace(grader, grade=lambda *_: Verdict(False, "memory"))
        monkeypatch.setitem(GRADERS, name, broken)
        with pytest.raises(RuntimeError, match=f"the {name} grader does not work on this machine: memory"):
            check(name)

    def no_jail(*_):
        raise JailError("no jail works here")

    monkeypatch.setitem(GRADERS, "code", replace(GRADERS["code"], grade=no_jail))
    with pytest.raises(JailError):
        check("code")


def test_nothing_is_left_behind(function_file):
    before = descendants(), descriptors(), threading.active_count()
    grade(function_file, "good", "hang with children", "exit", "raise", timeout=0.5)
    assert (descendants(), descriptors(), threading.active_count()) == before


def test_closing_does_not_wait_for_a_hung_grade(function_file, tmp_path):
    pool = RewardPool(RewardSettings(function_file, cores=1, timeout=600.0))
    hangs = tmp_path / "it hangs"

    async def hang_and_close():
        under_way, queued = (asyncio.create_task(pool.grade("say so and hang", "", str(hangs))) for _ in range(2))
        while not hangs.exists():
            await asyncio.sleep(0.01)
        await asyncio.to_thread(pool.close)
        return [(await task).failure for task in (under_way, queued)]

    assert asyncio.run(hang_and_close()) == ["worker died", "the pool was closed"]


def test_a_grade_that_waited_while_the_pool_was_closed_is_a_failure(function_file):
    pool = RewardPool(RewardSettings(function_file, cores=1, timeout=600.0))
    pool.close()
    assert asyncio.run(pool.grade("good", "", "1")).failure == "the pool was closed"


SAYS_42 = {"inputs": [""], "outputs": ["42\n"]}
TOWER = "9^{9^{9^9}}"
ENDLESS = {  # reward: a response whose grade takes for ever, its label; a quick one, its label
    "math": (rf"\boxed{{{TOWER}x}}", rf"2^{{{TOWER}}}x", r"\boxed{x\cdot 2}", "2x"),
    "code": ("```python\nwhile True: pass\n```", SAYS_42, "```python\nprint(42)\n```", SAYS_42),
    "file": ("hang", "1", "good", "1"),
}


@pytest.mark.parametrize("reward", ENDLESS)
def test_a_grade_that_is_cancelled_is_ended_and_one_that_waits_never_starts(
    function_file, reward, needs_jail, monkeypatch
):
    endless, its_label, quick, label = ENDLESS[reward]
    before, graded, run = descendants(), [], Job.run
    monkeypatch.setattr(Job, "run", lambda job, work, *sample: (graded.append(sample[0]), run(job, work, *sample))[1])
    pool = RewardPool(RewardSettings(function_file if reward == "file" else reward, cores=1, timeout=500.0))

    async def cancel_and_grade():
        under_way = asyncio.create_task(pool.grade(endless, "", its_label))
        while not any(stats()[pid][0] in "RS" for pid in descendants() - before if pid in stats()):
            await asyncio.sleep(0.1)
        waiting = asyncio.create_task(pool.grade("it waits", "", its_label))
        await asyncio.sleep(1.0)
        for task in (under_way, waiting):
            task.cancel()
        assert await asyncio.gather(under_way, waiting, return_exceptions=True) != []
        return await pool.grade(quick, "", label)

    with closing(pool):
        assert asyncio.run(cancel_and_grade()).reward == 1.0
    assert graded == [endless, quick]
    assert wait_until(lambda: descendants() <= before)


def test_a_file_is_loaded_when_it_is_needed_and_again_when_it_died(function_file):
    before = children()
    with closing(RewardPool(RewardSettings(function_file, cores=1, timeout=60.0))) as pool:
        assert children() == before
        assert next(pool.grade_all([("exit", "", "1")])).failure == "worker died"
        assert {next(pool.grade_all([("pid", "", "1")])).reward} == children() - before
