"""Processor time of the driver for a training step, and of an engine's front end for a token.

    python benchmarks/driver.py --rollouts 512 --tokens 4000 --output benchmarks/results/driver.json

Engines and ranks are simulated. Responses are made as an engine makes them and travel pickled; log-probs and weights
come from the ranks at once. The front end is vLLM's own: from the core's message to the output that a caller awaits.
"""

import pickle
import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import torch
from measure import environment, print_table, script_parser, write_json

from openrlhf_shear.train.cpu import backend

SIZE, VOCABULARY, PROMPT = 8, 150_000, 200


def responses(rollouts: int, tokens: int, seed: int = 0) -> list[bytes]:
    """Return the pickled responses of each prompt, as they come from an engine."""
    from openrlhf_shear.rewards.verdict import of_numbers

    rng, groups = np.random.default_rng(seed), []
    for _ in range(rollouts // SIZE):
        group = []
        for number in range(SIZE):
            length = int(rng.integers(tokens // 2, tokens * 3 // 2))
            log_probs = np.zeros(PROMPT + length, np.float32)
            log_probs[PROMPT:] = -rng.exponential(size=length)
            group.append(
                {
                    "observation_tokens": rng.integers(0, VOCABULARY, PROMPT + length),
                    "action_ranges": [(PROMPT, PROMPT + length)],
                    "rollout_log_probs": log_probs,
                    "truncated": False,
                    "mm_train_inputs": None,
                    "verdict": of_numbers(float(number % 2), float(number % 2), {"format": 1.0}),
                }
            )
        groups.append(pickle.dumps(group, protocol=5))
    return groups


def arguments(ranks: int) -> SimpleNamespace:
    """Return the nested arguments that the driver's classes read."""
    space = SimpleNamespace
    advantage = space(estimator="group_norm", gamma=1.0, lambd=1.0, no_std_norm=False, is_correction_level="token")
    return space(
        algo=space(advantage=advantage, dynamic_filtering_enable=False, kl=space(use_loss=False, estimator="k1")),
        reward=space(remote_url=["math"], overlong_buffer_len=None, stop_properly_penalty_coef=None, clip_range=None),
        rollout=space(
            **{"n_samples_per_prompt": SIZE, "batch_size": 64, "micro_batch_size": 4, "max_tokens_per_gpu": 32768},
            **{"vllm_generate_batch_size": None, "temperature": 1.0, "top_p": 1.0},
        ),
        train=space(
            **{"dynamic_batch_enable": True, "batch_size": 64 * SIZE, "micro_batch_size": 4, "seed": 0},
            **{"agent_func_path": None, "colocate_all": False, "colocate_actor_ref": False},
            **{"full_determinism_enable": False, "partial_rollout_enable": False},
        ),
        actor=space(num_nodes=1, num_gpus_per_node=ranks),
        ds=space(ring_attn_size=1, tensor_parallel_size=1),
        credit=space(outcome=space(correct_threshold=0.5, correct_reward=None)),
        vllm=space(enable_sleep=False),
    )


def driver(ranks: int):
    """Return the generator and the experience maker of a run, with simulated ranks."""
    from openrlhf.trainer.ppo_utils import experience_maker as upstream

    from openrlhf_shear.credit.rule import GroupCredit
    from openrlhf_shear.credit.rules.uniform import UniformRule
    from openrlhf_shear.train.experience import experience_maker as ours
    from openrlhf_shear.train.sampling.samples import ShearSamplesGenerator

    upstream.ray = SimpleNamespace(put=lambda value: value, get=lambda value: value)
    args = arguments(ranks)
    strategy, tokenizer = SimpleNamespace(args=args), SimpleNamespace(pad_token_id=0)

    class Maker(ours.CreditExperienceMaker):
        """Maker whose ranks answer at once."""

        def _dispatch_forward(self, group, sync_condition, **kwargs):
            self._step.requests = self._credit_requests()
            return [[[mask.float() * -0.5 for mask in kwargs["action_mask"]]]]

        def _flatten_results(self, refs, duplicate_factor):
            return refs[0][0] if isinstance(refs[0][0], list) else [None] * len(self._step.samples)

        def _weighed(self, requests):
            lengths, rows = {}, {}
            for samples, request in zip(self._step.samples, requests, strict=True):
                for i, group, length in zip(request.rollouts, request.groups, samples.action_mask.sum(1), strict=True):
                    rows.setdefault(group, []).append(i)
                    lengths[i] = int(length)
            ones = {i: torch.ones(length) for i, length in lengths.items()}
            outcomes = (tuple(float(n % 2) for n in range(SIZE)), tuple(n % 2 == 1 for n in range(SIZE)))
            groups = [
                GroupCredit(tuple(own), *outcomes, {}, 0.0, weights=tuple(ones[i] for i in own))
                for own in rows.values()
            ]
            return [groups]

    group = SimpleNamespace(actors=[None] * ranks)
    maker = Maker(group, None, None, None, SimpleNamespace(value=0.0), strategy, tokenizer, rule=UniformRule())
    engines = SimpleNamespace(handles=[])
    return ShearSamplesGenerator(strategy, None, None, tokenizer, engines, None), maker


def step(generator, maker, groups: list[bytes], max_len: int) -> dict[str, float]:
    """Run a step; return the processor seconds of each stage."""
    from openrlhf.trainer.ppo_trainer import BasePPOTrainer

    from openrlhf_shear.train.sampling.rollout_rewards import complete_info

    seconds: dict[str, float] = {}

    @contextmanager
    def stage(name: str):
        begin = time.process_time()
        yield
        seconds[name] = seconds.get(name, 0.0) + time.process_time() - begin

    with stage("responses to experiences"):
        known = {"prompt": "1+1=", "label": "2", "images": None}
        samples = [
            generator._process_response_into_experience(known | response, max_len=max_len)
            for group in groups
            for response in pickle.loads(group)
        ]
        complete_info(samples)
    with stage("micro-batches"):
        batches = maker.split_rollout_samples(samples)
    with stage("log-probs to experiences"):
        experiences = maker.make_experience(batches)
    with stage("advantages and credit"):
        experiences = maker.compute_advantages_and_returns(experiences)
    with stage("to the ranks"):
        maker._note_broken("advantage not finite", experiences, lambda e: (e.advantages * e.action_mask,))
        experiences = maker._without_broken(experiences)
    with stage("statistics"):
        BasePPOTrainer._compute_rollout_stats(SimpleNamespace(args=maker.args), experiences)
    return seconds


def front_end(requests: int, tokens: int, **sampling) -> float:
    """Return the processor seconds of vLLM's front end for a sampled token."""
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
    from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
    from vllm.v1.outputs import LogprobsLists
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    from openrlhf_shear.tasks.arithmetic.policy import build_tokenizer

    parameters, processor = (
        SamplingParams(max_tokens=tokens, **sampling),
        OutputProcessor(build_tokenizer(), log_stats=False),
    )
    queues = [RequestOutputCollector(parameters.output_kind, str(n)) for n in range(requests)]
    for n, queue in enumerate(queues):
        request = EngineCoreRequest(
            str(n), [5, 6], None, parameters, None, 0.0, None, None, None, external_req_id=str(n)
        )
        processor.add_request(request, "1+1=", None, 0, queue)
    ids, encoder, messages = np.random.default_rng(0).integers(3, 12, (tokens, requests)), MsgpackEncoder(), []
    for t, row in enumerate(ids.tolist()):
        end = FinishReason.LENGTH if t == tokens - 1 else None
        log_probs = [None] * requests
        if parameters.logprobs is not None:
            rank = np.ones(1, np.int32)
            log_probs = [LogprobsLists(np.array([[i]], np.int32), np.array([[-0.5]], np.float32), rank) for i in row]
        each = zip(row, log_probs, strict=True)
        outputs = [EngineCoreOutput(str(n), [i], found, finish_reason=end) for n, (i, found) in enumerate(each)]
        messages.append(encoder.encode(EngineCoreOutputs(outputs=outputs)))
    decoder, begin = MsgpackDecoder(EngineCoreOutputs), time.process_time()
    for message in messages:
        processor.process_outputs(decoder.decode(message).outputs)
        for queue in queues:
            queue.get_nowait()
    return (time.process_time() - begin) / (requests * tokens)


def front_ends() -> list[dict]:
    """Return a row for each way to ask vLLM; the first is OpenRLHF's, the last but one a training run's."""
    from vllm.sampling_params import RequestOutputKind

    final = {"output_kind": RequestOutputKind.FINAL_ONLY}
    ways = {
        "all outputs, text, log-probs as dictionaries": {"logprobs": 1},
        "the final output": {"logprobs": 0, **final},
        "the final output, flat log-probs": {"logprobs": 0, "flat_logprobs": True, **final},
        "the final output, flat log-probs, no text": {
            "logprobs": 0,
            "flat_logprobs": True,
            "detokenize": False,
            **final,
        },
        "the final output, neither log-probs nor text": {"detokenize": False, **final},
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(5):
        for name, way in ways.items():
            best[name] = min(best[name], front_end(64, 300, **way))
    return [{"asked": name, "us a token": 1e6 * seconds} for name, seconds in best.items()]


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--rollouts", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=4000, help="mean tokens of a response (default 4000)")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    backend.install()
    generator, maker = driver(args.ranks)
    step(generator, maker, responses(SIZE, 64), 4096)  # what a first call costs
    found = {}
    for count, tokens in ((args.rollouts, args.tokens), (args.rollouts, args.tokens // 4)):
        groups = responses(count, tokens)
        if args.profile:
            import cProfile
            import pstats

            with cProfile.Profile() as profile:
                step(generator, maker, groups, 2 * tokens + PROMPT)
            pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
        found[tokens] = step(generator, maker, groups, 2 * tokens + PROMPT)
    (long, short) = found
    rows = [
        {
            "stage": name,
            "s": found[long][name],
            "ms a rollout": 1e3 * found[short][name] / args.rollouts,
            "us a token": 1e6 * (found[long][name] - found[short][name]) / (args.rollouts * (long - short)),
        }
        for name in found[long]
    ]
    rows.append({name: sum(row[name] for row in rows) for name in list(rows[0])[1:]} | {"stage": "all"})
    print_table(f"driver: {args.rollouts} rollouts of {args.tokens} tokens", rows, {name: name for name in rows[0]})
    asked = front_ends()
    print_table("front end of an engine", asked, {name: name for name in asked[0]})
    write_json(args.output, {"environment": environment(), "driver": rows, "front_end": asked})


if __name__ == "__main__":
    main()
