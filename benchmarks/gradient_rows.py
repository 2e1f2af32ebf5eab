"""The rows of `gradients.py`: every way to cut a batch.

A new way is an entry of `ROWS`; `UPSTREAM` shows the table's findings without this package's fix.
"""

from collections.abc import Iterator
from dataclasses import dataclass

LORA_RANK, LORA_ALPHA = 8, 16
KL, ENTROPY = 0.1, 0.01


@dataclass(frozen=True)
class Row:
    """A way to cut a batch."""

    name: str
    flags: str = ""
    rollouts: int = 16
    ranks: int = 1
    role: str = "policy"
    offload: bool = False
    bfloat16: bool = False  # as training runs; else float32, where only the order of sums differs
    upstream: bool = False  # as OpenRLHF 0.11.2, DeepSpeed is not told where a step ends; the row must fail
    probed: bool = True  # whether the run's own probe is on
    launch: str = ""  # rows of the same launch share processes
    sees: bool = False  # the model of `vision.py`, and a picture in every prompt

    @property
    def limits(self) -> tuple[float, float]:
        """A row passes with a cosine above the first and a norm within the second; both are widened measurements.

        In float32 every row had 1.000000 and 1.0000. In bfloat16 the worst had 0.9982 and 1.024; a plain bfloat16 pass
        of the same model, one rollout at a time, has 0.9992 and 1.019.
        """
        return (0.995, 0.05) if self.bfloat16 else (0.9999, 0.001)

    @property
    def processes(self) -> str:
        return self.launch or f"{'images' * self.sees}ranks{self.ranks}"


DYNAMIC = "--train.dynamic_batch_enable --train.max_tokens_per_gpu 300 --rollout.max_tokens_per_gpu 300"
PACKED = "--ds.packing_samples --ds.attn_implementation flash_attention_2"
LORA = f"--ds.lora.rank {LORA_RANK} --ds.lora.alpha {LORA_ALPHA}"
KL_LOSS = f"--algo.kl.use_loss --algo.kl.init_coef {KL} --algo.kl.estimator k3 --actor.entropy_coef {ENTROPY}"
GSPO = "--actor.policy_loss_type gspo"
RING = f"{PACKED} --ds.ring_attn_size 2"
CHUNKED = "--actor.logits_chunk 50"
TENSOR = "--ds.tensor_parallel_size 2"


def _rows() -> Iterator[Row]:
    for stage in (1, 2, 3):
        zero = f"--ds.zero_stage {stage}"
        yield Row(f"fixed, ZeRO-{stage}", zero)
        yield Row(f"dynamic, ZeRO-{stage}", f"{DYNAMIC} {zero}")
        yield Row(f"2 ranks, fixed, ZeRO-{stage}", zero, ranks=2)
        yield Row(f"2 ranks, dynamic, ZeRO-{stage}", f"{DYNAMIC} {zero}", ranks=2)
    yield Row("fixed, offload", offload=True)
    yield Row("dynamic, offload", DYNAMIC, offload=True)
    yield Row("dynamic, ZeRO-3, offload", f"{DYNAMIC} --ds.zero_stage 3", offload=True)
    yield Row("one rollout a micro-batch", "--train.micro_batch_size 1")
    yield Row("fixed, packed", PACKED)
    yield Row("dynamic, packed", f"{DYNAMIC} {PACKED}")
    yield Row("partial batch, fixed", rollouts=13)
    yield Row("partial batch, dynamic", DYNAMIC, rollouts=13)
    yield Row("partial batch of one, dynamic, packed", f"{DYNAMIC} {PACKED}", rollouts=9)
    yield Row("2 ranks, partial batch and fillers, fixed", rollouts=13, ranks=2)
    yield Row("2 ranks, partial batch and fillers, dynamic", DYNAMIC, rollouts=13, ranks=2)
    yield Row("LoRA, fixed", LORA)
    yield Row("LoRA, dynamic", f"{LORA} {DYNAMIC}")
    yield Row("2 ranks, LoRA, dynamic, ZeRO-3", f"{LORA} {DYNAMIC} --ds.zero_stage 3", ranks=2)
    yield Row("one optimizer step, dynamic", f"{DYNAMIC} --train.batch_size 16")
    yield Row("two epochs, dynamic", f"{DYNAMIC} --train.max_epochs 2")
    yield Row("KL and entropy in the loss, fixed", f"{KL_LOSS} --train.micro_batch_size 1")
    yield Row("KL and entropy in the loss, dynamic", f"{KL_LOSS} {DYNAMIC}")
    yield Row("mean over sequences, dynamic", f"--actor.loss_agg_mode seq-mean-token-mean {DYNAMIC}")
    yield Row("GSPO-token, fixed", f"{GSPO} --algo.advantage.estimator uniform")
    yield Row("GSPO-token, dynamic", f"{GSPO} --algo.advantage.estimator uniform {DYNAMIC}")
    yield Row("an update rule, fixed", "--algo.advantage.estimator entropy_adv --actor.entropy_coef 0")
    yield Row("an update rule, dynamic", f"--algo.advantage.estimator entropy_adv --actor.entropy_coef 0 {DYNAMIC}")
    yield Row("logits in chunks, fixed", CHUNKED)
    yield Row("logits in chunks, packed, KL and entropy, dynamic", f"{CHUNKED} {PACKED} {KL_LOSS} {DYNAMIC}")
    yield Row("logits in chunks, 2 ranks, ZeRO-3", f"{CHUNKED} --ds.zero_stage 3", ranks=2)
    lora = f"{CHUNKED} {LORA} {DYNAMIC} --ds.zero_stage 3 --algo.advantage.estimator entropy_adv"
    yield Row("logits in chunks, 2 ranks, LoRA, an update rule, dynamic, ZeRO-3", lora, ranks=2)
    yield Row("critic, fixed", role="critic")
    yield Row("critic, dynamic", DYNAMIC, role="critic")
    yield Row("2 ranks, critic, dynamic", DYNAMIC, role="critic", ranks=2)
    yield Row("ring, fixed", RING, ranks=2, launch="ring")
    yield Row("ring, dynamic", f"{RING} {DYNAMIC}", ranks=2, launch="ring")
    yield Row("ring, logits in chunks, dynamic", f"{CHUNKED} {RING} {DYNAMIC}", ranks=2, launch="ring")
    yield Row("images, one rollout a micro-batch", "--train.micro_batch_size 1", sees=True)
    yield Row("images, frozen vision encoder", "--actor.freeze_visual_encoder", sees=True)
    yield Row("2 ranks, images, ZeRO-2", "--ds.zero_stage 2", ranks=2, sees=True)
    yield Row("2 ranks, images, partial batch and fillers, ZeRO-3", "--ds.zero_stage 3", 13, 2, sees=True)
    tensor = {"ranks": 2, "launch": "tensor", "bfloat16": True}  # OpenRLHF supports it in bfloat16 only
    yield Row("tensor parallel, fixed, bfloat16", TENSOR, **tensor)
    yield Row("tensor parallel, dynamic, bfloat16", f"{TENSOR} {DYNAMIC}", **tensor)
    for name, flags in (
        ("fixed", ""),
        ("dynamic", DYNAMIC),
        ("dynamic, gradients in float32", f"{DYNAMIC} --ds.grad_accum_dtype fp32"),
        ("logits in chunks, dynamic", f"{CHUNKED} {DYNAMIC}"),
    ):
        yield Row(f"{name}, bfloat16", flags, bfloat16=True)
    yield Row("2 ranks, dynamic, bfloat16", DYNAMIC, ranks=2, bfloat16=True)
    yield Row("dynamic, offload, bfloat16", DYNAMIC, offload=True, bfloat16=True)


ROWS = tuple(_rows())
UPSTREAM = (
    Row("OpenRLHF 0.11.2: GSPO with an advantage for each token", GSPO, upstream=True, probed=False),
    Row("OpenRLHF 0.11.2: dynamic, ZeRO-2", DYNAMIC, upstream=True, probed=False),
    Row("OpenRLHF 0.11.2: dynamic, ZeRO-1", f"{DYNAMIC} --ds.zero_stage 1", upstream=True, probed=False),
    Row("OpenRLHF 0.11.2: dynamic, offload", DYNAMIC, upstream=True, probed=False, offload=True),
    Row("OpenRLHF 0.11.2: dynamic, critic", DYNAMIC, upstream=True, probed=False, role="critic"),
    Row("OpenRLHF 0.11.2, with the probe: dynamic, ZeRO-2", DYNAMIC, upstream=True),
    Row("OpenRLHF 0.11.2, with the probe: dynamic, offload", DYNAMIC, upstream=True, offload=True),
    Row("OpenRLHF 0.11.2, with the probe: 2 ranks, LoRA", f"{LORA} {DYNAMIC}", upstream=True, ranks=2),
)
