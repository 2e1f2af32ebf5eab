"""The evaluation suite of a training run, and the facts that a run writes about itself."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace as Section

import pytest

from openrlhf_shear.config import CreditSpec, PrmConfig, PureConfig, ShearConfig
from openrlhf_shear.data.files import DataError
from openrlhf_shear.evaluation.comparison.cells import noted, sections
from openrlhf_shear.evaluation.comparison.runs import ReportError, Run
from openrlhf_shear.evaluation.suite import run_facts, suite_benchmarks, suite_plan, write_run_facts


def arguments(credit=None, estimator="group_norm", **changed) -> Section:
    """The parts of OpenRLHF's nested namespace that are read, as its parser leaves them."""
    evaluation = {
        "dataset": "/data/math/test.jsonl",
        "suite": "rows.jsonl",
        "data_dir": None,
        "k": 0,
        "limit": 0,
        "temperature": 0.1,
    }
    return Section(
        credit=credit,
        algo=Section(advantage=Section(estimator=estimator), kl=Section(init_coef=0.0, use_loss=False)),
        actor=Section(model_name_or_path="org/model", adam=Section(lr=1e-6)),
        reward=Section(remote_url=["math"]),
        train=Section(seed=7, batch_size=32),
        rollout=Section(n_samples_per_prompt=16, max_new_tokens=None, batch_size=4, temperature=1.0, top_p=0.9),
        data=Section(
            prompt_dataset="/data/math/train.jsonl,org/set",
            prompt_probs="0.5,0.5",
            max_samples=100,
            input_key="ask",
            label_key="gold",
            max_len=512,
            apply_chat_template=True,
            input_template=None,
        ),
        logger=Section(tensorboard_dir=None),
        eval=Section(**evaluation | changed),
    )


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"ask": f"{i} + 1?", "gold": str(i + 1)}) + "\n" for i in range(3)]
    Path("rows.jsonl").write_text("".join(lines))


def test_a_file_is_asked_with_the_run_s_columns_and_reward(rows):
    plan = suite_plan(arguments())
    assert [question.label for question in plan.questions] == ["1", "2", "3"]
    assert (plan.tasks, plan.ks, plan.prompt_format.chat) == ({"custom-rows": "math"}, {"custom-rows": 1}, True)
    assert (plan.sampling.temperature, plan.sampling.max_new_tokens, plan.sampling.seed) == (0.1, 512, 7)
    plan = suite_plan(arguments(k=4, limit=2))
    assert len(plan.questions) == 2 and plan.ks == {"custom-rows": 4}


def test_what_can_be_asked_and_what_cannot(rows):
    assert [benchmark.k for benchmark in suite_benchmarks("math", None, "ask", None)] == [32, 32, 8, 1, 1]
    with pytest.raises(DataError, match=r"nowhere\.jsonl"):
        suite_plan(arguments(suite="nowhere.jsonl"))
    with pytest.raises(ValueError, match="did you mean gsm8k"):
        suite_benchmarks("gsm9k", None, "ask", None)
    with pytest.raises(ValueError, match="the task must be"):
        suite_benchmarks("rows.jsonl", "http://a:80", "ask", "gold")


def test_seeds_of_other_data_or_another_objective_share_no_cell_of_a_report():
    """The folder of a copied file does not matter, nor a further evaluation; the rows do."""

    def facts(part="data", name="prompt_probs", value=None, digests=("a", "b")) -> dict:
        args = arguments()
        args.data.prompt_probs = None
        setattr(getattr(args, part), name, value)
        return run_facts(args, *digests)

    def seeds(*of: dict) -> list[Run]:
        return [Run(Path(f"{seed}"), seed=seed, others=each) for seed, each in enumerate(of)]

    first = facts()
    assert facts("data", "prompt_dataset", "/elsewhere/train.jsonl,org/set") == first
    assert len(sections(seeds(first, facts("eval", "dataset", None)))[0].variants[0].runs) == 2
    for other in (
        *(facts("data", name, value) for name, value in (("prompt_dataset", "other.jsonl"), ("max_samples", 9))),
        *(facts("rollout", name, 0.5) for name in ("temperature", "top_p")),
        *(facts("eval", "dataset", "other.jsonl"), facts(digests=("c", "b")), facts(digests=("a", "c"))),
    ):
        with pytest.raises(ReportError, match="would share a cell"):
            sections(seeds(first, other))
    blended = [run_facts(arguments(), digest) for digest in "ab"]  # the seed decides which rows there are
    assert blended[0] == blended[1] and first["kl"] != facts("algo", "kl", Section(init_coef=0.1, use_loss=False))["kl"]


def test_methods_trained_on_other_data_have_a_note():
    runs = [Run(Path(name), method=name, others={"prompts": [name], "kl": 0.0}) for name in ("grpo", "shear")]
    assert [run.notes for run in noted(runs)] == [(), ("prompts is ['shear'], and ['grpo'] in grpo",)]


def test_run_json_says_which_run_this_is(tmp_path):
    assert run_facts(arguments()) == {
        **{"method": "grpo", "model": "org/model", "task": "math", "seed": 7, "group": 16, "credit": None},
        **{"knobs": None, "prm": None, "learning_rate": 1e-6, "batch": [4, 32], "max_new_tokens": None, "max_len": 512},
        "prompts": [["train.jsonl", "org/set"], "0.5,0.5", 100, None],
        "eval_prompts": [["test.jsonl"], None],
        "kl": [0.0, False],
        "sampling": [1.0, 0.9],
        "eval": {"suite": "rows.jsonl", "k": 0, "limit": 0, "temperature": 0.1},
    }
    pure = run_facts(arguments(CreditSpec("pure", prm=PrmConfig("org/prm"))))
    assert (pure["knobs"], pure["prm"], pure["credit"]) == (asdict(PureConfig()), "org/prm", None)
    args = arguments(CreditSpec("shear", ShearConfig(window=80)))
    args.reward.remote_url = "somewhere/arithmetic.py"
    assert run_facts(args)["credit"] == asdict(ShearConfig(window=80)) | {
        **{"backend": "auto", "correct_threshold": 0.5, "max_cost_bytes": 0, "max_waiting_bytes": None}
    }
    assert (run_facts(args)["method"], run_facts(args)["task"]) == ("shear", "arithmetic")
    assert run_facts(arguments(CreditSpec("a.b:Mine")))["method"] == "a.b:Mine"
    assert run_facts(arguments(estimator="rloo"))["method"] == "rloo"
    write_run_facts(args)
    assert not list(tmp_path.iterdir())
    args.logger.tensorboard_dir = str(tmp_path / "log")
    write_run_facts(args)
    assert json.loads((tmp_path / "log" / "run.json").read_text()) == run_facts(args)
