"""Names of the values that a reward logs beside itself (`extra_logs`), kept apart from the metrics of training."""

from openrlhf_shear.config.rules import RULES

# Names without a section: OpenRLHF's, and five of the fork's. Every other metric of the fork has a section.
NAMES = frozenset(
    (
        # carried by a rollout to the update
        *("reward", "rewards", "score", "scores", "truncated", "response_length", "total_length", "filler"),
        *("response_clip_ratio", "reward_failed", "kl", "logprobs_diff", "return"),
        *("group_reward_std", "ppo_kl", "ppo_clip_ratio", "is_filter_ratio"),
        *("engine", "vllm_kl", "vllm_gap", "vllm_gap_max"),
        # reported by updates
        *("policy_loss", "entropy_loss", "actor_lr", "actor_grad_norm", "critic_loss", "critic_lr", "values"),
        *("critic_grad_norm", "num_action_tokens", "_num_samples", "_num_action_tokens", "_weights"),
        # reported for a step
        *("dynamic_filtering_pass_rate", "generated_samples", "global_step"),
    )
)
SECTIONS = frozenset(("rollout", "timing", "update", "ledger", "nonfinite", "engine", "prm", *RULES))
PREFIX = "extra_"


def renamed(name: str) -> str:
    """Return the name under which an entry of `extra_logs` is logged: unchanged, unless a metric of training has it.

    >>> renamed("turns"), renamed("score"), renamed("timing/tool"), renamed("tool/kl")
    ('turns', 'extra_score', 'extra_timing_tool', 'tool/kl')
    """
    section, slash, _ = name.partition("/")
    taken = name in NAMES or (slash and section in SECTIONS)
    return PREFIX + name.replace("/", "_") if taken else name
