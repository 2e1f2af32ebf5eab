"""One prompt has the same token ids wherever a policy reads it, with one BOS where its tokenizer begins with one."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace as Section

import openrlhf_on_cpu  # noqa: F401
import pytest
from bos_tokenizers import BOS, CHAT, EOS, write_tokenizer
from command_lines import refusal
from openrlhf.utils.agent import MultiTurnAgentExecutor, SingleTurnAgentExecutor
from transformers import AutoTokenizer

from openrlhf_shear.cli import sampling_flags
from openrlhf_shear.data.files import DataError
from openrlhf_shear.data.prompts import PromptFormat, TwoStartsError, prompt_ids
from openrlhf_shear.diagnosis.run import sampled_groups
from openrlhf_shear.evaluation.suite import suite_plan
from openrlhf_shear.preflight.rows import special_tokens
from openrlhf_shear.sampling.records import Completion, Verdict
from openrlhf_shear.sampling.sampler import question_ids
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR, make_problems
from openrlhf_shear.train.sampling.prompt_data import read_prompts

TEMPLATE = "Q: {} A:"
QUESTIONS = ["1 + 1?", " Why\n\nnot? ", "<image>How many?", "Zoe's 3-4", "{}"]


class Strategy:
    """The part of OpenRLHF's strategy that `read_prompts` uses."""

    def __init__(self, args):
        self.args = args

    def setup_dataloader(self, rows, *_, **options):
        return rows


class Engine:
    """An engine that records its prompts and answers with one token."""

    def __init__(self):
        self.asked = []

    async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
        self.asked.append(list(prompt_token_ids))
        return Section(outputs=[Section(token_ids=[5], text="x", finish_reason="stop", logprobs=None)])


def arguments(file: str, chat: bool, template: str | None) -> Section:
    """The parts of a run's arguments that say what its policy reads."""
    evaluation = {"suite": file, "dataset": file, "split": "train", "data_dir": None, "k": 1, "limit": 0}
    return Section(
        use_ms=False,
        actor=Section(model_name_or_path="model"),
        reward=Section(remote_url="reward.py"),
        train=Section(seed=0, batch_size=1, num_episodes=1, max_epochs=1),
        rollout=Section(n_samples_per_prompt=1, max_new_tokens=4),
        eval=Section(temperature=1.0, **evaluation),
        data=Section(
            **{"prompt_dataset": file, "prompt_split": "train", "prompt_probs": None, "max_samples": 100},
            **{"input_key": "question", "label_key": "answer", "image_key": "images", "max_images_per_prompt": 0},
            **{"apply_chat_template": chat, "input_template": template, "max_len": 512, "dataloader_num_workers": 0},
        ),
    )


def engine_ids(tokenizer, text: str, executor) -> list[int]:
    """What OpenRLHF's executor gives the engine."""
    engine, sampling = Engine(), Section(max_tokens=4, logprobs=None)
    asyncio.run(executor.execute(text, "", sampling, 512, tokenizer, engine))
    return engine.asked[0]


class Once:
    """An agent of one turn."""

    async def reset(self, states, **_):
        return states

    async def step(self, states, **_):
        import torch

        return {"rewards": torch.tensor(0.0), "environment_feedback": "", "done": True}


def agents_executor() -> MultiTurnAgentExecutor:
    executor = MultiTurnAgentExecutor.__new__(MultiTurnAgentExecutor)
    executor.agent_instance_cls = Once
    return executor


CASES = {
    "Llama 3's base, input template": ("begins", None, TEMPLATE),
    "Llama 3's base, nothing": ("begins", None, None),
    "a base that ends texts too": ("begins and ends", None, TEMPLATE),
    "Mistral's base": ("begins, marked", None, TEMPLATE),
    "a template with BOS": ("begins", "{{ bos_token }}" + CHAT, None),
    "a template without BOS": ("begins", CHAT, None),
    "Qwen's base": ("nothing", None, TEMPLATE),
}


@pytest.mark.parametrize("case", [*CASES, "the shipped policy"])
def test_training_agents_evaluation_suite_and_diagnosis_read_the_same_ids(tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    kind, chat, template = CASES.get(case, (None, None, None))
    folder = write_tokenizer(tmp_path / "model", kind, chat) if kind else POLICY_DIR
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked = QUESTIONS if kind else [problem.prompt for problem in make_problems(3, 0, "train")]
    Path("rows.jsonl").write_text("".join(json.dumps({"question": q, "answer": "2"}) + "\n" for q in asked))
    args = arguments("rows.jsonl", chat is not None, template)
    made = read_prompts(Strategy(args), tokenizer)
    trained, evaluated = made.training, made.evaluation
    plan = suite_plan(args)
    done = [Completion(q.benchmark, q.id, 0, "x", 1, False, Verdict(True), [5]) for q in plan.questions]
    groups = sampled_groups(plan, done, tokenizer)
    for i, question in enumerate(asked):
        _, text, label, _ = trained[i]
        assert (label, evaluated[i][1]) == ("2", text)
        ids = engine_ids(tokenizer, text, SingleTurnAgentExecutor())
        assert ids == expected(tokenizer, question, kind, chat, template), tokenizer.decode(ids)
        assert ids == engine_ids(tokenizer, text, agents_executor())
        assert ids == prompt_ids(tokenizer, text) == question_ids(tokenizer, plan.questions[i], plan.prompt_format)
        assert ids == list(groups[i].prompt)
        assert tokenizer.decode(ids) == groups[i].rollouts[0].prompt


def expected(tokenizer, question: str, kind: str | None, chat: str | None, template: str | None) -> list[int]:
    """By hand: the special tokens' ids, and those of the text between them."""
    bos = [] if kind in (None, "nothing") else [tokenizer.convert_tokens_to_ids(BOS)]
    if chat:
        body = f"[user]{question}[assistant]"
        bos = bos if "bos_token" in chat else []
    else:
        body = (template or "{}").replace("{}", question, 1)
    ids = tokenizer(body, add_special_tokens=False)["input_ids"]
    if not chat and bos:
        usual = tokenizer(body)["input_ids"]  # as a base model was pretrained
        assert [i for i in usual if i != tokenizer.convert_tokens_to_ids(EOS)] == bos + ids
    return bos + ids


@pytest.mark.parametrize("kind", ["begins", "begins and ends", "begins, marked"])
def test_a_prompt_that_has_its_bos_already_gets_no_other(tmp_path, kind):
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(tmp_path, kind))
    bos = tokenizer.convert_tokens_to_ids(BOS)
    text = PromptFormat(chat=False).text(tokenizer, f"{BOS}[user]hi[assistant]")
    assert text == f"{BOS}[user]hi[assistant]" and prompt_ids(tokenizer, text).count(bos) == 1
    for template in (f"{BOS}{{}}", "Q: {}"):
        with pytest.raises(TwoStartsError, match=r"begins with <\|bos\|>, which the policy would read twice"):
            PromptFormat(False, template).text(tokenizer, f"{BOS}hi")
    with pytest.raises(TwoStartsError):
        PromptFormat(chat=False).text(tokenizer, f"{BOS}{BOS}hi")


def test_a_whole_prompt_in_a_chat_template_is_refused_and_turns_with_bos_are_not(tmp_path):
    turns = "{% for m in messages %}{{ bos_token }}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"  # Llama 2's
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(tmp_path, "begins", turns))
    chat = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    assert PromptFormat(chat=True).text(tokenizer, chat).count(BOS) == 3
    with pytest.raises(TwoStartsError):
        PromptFormat(chat=True).text(tokenizer, f"{BOS}[user]hi")


def test_image_in_a_question_to_a_text_model_stays_as_it_is(tmp_path, monkeypatch):
    """A template that prints any content would print a list; another would leave <image> out."""
    monkeypatch.chdir(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(tmp_path / "model", "nothing", CHAT))
    talk = [{"role": "system", "content": "<image>"}, {"role": "user", "content": "a <image> b"}]
    rows = [{"question": prompt, "answer": "2"} for prompt in ("<image>", " a <image>b", talk)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts = read_prompts(Strategy(arguments("rows.jsonl", True, None)), tokenizer).training
    assert [prompts[i][1] for i in range(3)] == [
        "[user]<image>[assistant]",
        "[user] a <image>b[assistant]",
        "[system]<image>[user]a <image> b[assistant]",
    ]
    args = arguments("rows.jsonl", True, None)
    args.data.max_images_per_prompt = 1
    prompts = read_prompts(Strategy(args), tokenizer).training
    assert "{'type': 'image'}" in prompts[0][1], "of a model that sees it is a picture"


def test_a_template_that_refuses_one_of_many_rows_names_it(job, tmp_path, capsys):
    refusing = "{% if messages[0]['content'] == 'bad' %}{{ raise_exception('no bad ones') }}{% endif %}" + CHAT
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(Path("refuses"), "begins", refusing))
    Path("refuses/config.json").write_text("{}")
    rows = [[{"role": "user", "content": "bad" if line == 170 else "good"}] for line in range(1, 201)]
    Path("many.jsonl").write_text("".join(json.dumps({"question": row, "answer": "2"}) + "\n" for row in rows))
    args = arguments("many.jsonl", True, None)
    assert len(read_prompts(Strategy(args), tokenizer).training) == 100, "--data.max_samples"
    args.data.max_samples = 200
    with pytest.raises(DataError, match=r"data.input_key question: line 170 of many.jsonl: TemplateError: no bad ones"):
        read_prompts(Strategy(args), tokenizer)
    line = job("--data.prompt_dataset many.jsonl --actor.model_name_or_path refuses --data.apply_chat_template")
    assert "data.apply_chat_template fails on line 170 of the prompts (no bad ones)" in refusal(capsys, line)


@pytest.mark.parametrize(("kind", "chat"), [("begins", None), ("begins, marked", None), ("begins", CHAT)])
def test_most_rows_do_not_call_the_tokenizer(tmp_path, monkeypatch, kind, chat):
    monkeypatch.chdir(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(tmp_path / "model", kind, chat))
    calls = []
    for name in ("__call__", "apply_chat_template"):
        call = getattr(type(tokenizer), name)
        monkeypatch.setattr(type(tokenizer), name, lambda *a, call=call, **k: calls.append(1) or call(*a, **k))
    args = arguments("rows.jsonl", chat is not None, None)
    args.data.max_samples, args.eval.dataset = 1280, None
    rows = [json.dumps({"question": f"{'What' if i % 2 else ' how'} is {i}?", "answer": "2"}) for i in range(1280)]
    Path("rows.jsonl").write_text("\n".join(rows))
    prompts = read_prompts(Strategy(args), tokenizer).training
    assert len(calls) <= 20, "a call for 64 rows, or for a first character"
    wanted = [chat or tokenizer(json.loads(row)["question"])["input_ids"] for row in rows]
    assert all(chat or prompt_ids(tokenizer, prompts[i][1]) == wanted[i] for i in range(1280))


def test_preflight_reads_prompts_as_training_does(job, capsys):
    line = job("--data.prompt_dataset mine.jsonl --reward.remote_url mine.py --actor.model_name_or_path began")
    write_tokenizer(Path("began"), "begins")
    Path("began/config.json").write_text("{}")
    Path("mine.py").write_text(f"def reward_func(q, p, l): return {{'rewards': float(p == ['{BOS}1 + 1?'])}}\n")
    Path("mine.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    from openrlhf_shear.cli.train_ppo_ray import parse

    parse(line)
    assert "mine.py gives 1 to" in capsys.readouterr().err, "the prompt as the policy reads it"
    Path("mine.jsonl").write_text(json.dumps({"question": f"{BOS}1 + 1?", "answer": "2"}) + "\n")
    parse(line)
    assert "mine.py gives 1 to" in capsys.readouterr().err, "it has its BOS already"
    told = refusal(capsys, [*line, "--data.input_template", "Q: {}"])
    assert f"data.input_key gives a prompt (line 1) that begins with {BOS}" in told
    told = refusal(capsys, [*line, "--data.input_template", "Q: {0}"])
    assert "data.input_template has no {} for the prompt: got 'Q: {0}'" in told
    args = Section(prompt_format="plain", input_template="Q: {0}")
    with pytest.raises(ValueError, match=r"--input-template has no \{\} for the text: got 'Q: \{0\}'"):
        sampling_flags._check_template(args)


def test_the_first_token_of_a_tokenizer_is_known_from_its_files(tmp_path):
    for kind in ("begins", "begins and ends", "begins, marked"):
        assert special_tokens(str(write_tokenizer(tmp_path / kind, kind)))[0]
    assert special_tokens(str(POLICY_DIR)) == (False, "<eos>")
