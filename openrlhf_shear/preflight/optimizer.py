"""Checks of optimizers, of learning-rate schedules, and of the KL term of the loss."""

from collections.abc import Iterator

from openrlhf_shear.config.refusal import Finding, did_you_mean, refusal
from openrlhf_shear.line.run import Run

# Transformers' schedules that need no settings beside those of OpenRLHF's flags, and no metric at each step.
SCHEDULES = (
    *("linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"),
    *("cosine_with_min_lr", "cosine_warmup_with_min_lr"),
)
KL_LOSS = "--algo.kl.use_loss --algo.kl.estimator k3"


def optimizer(run: Run) -> Iterator[Finding]:
    """Refuse a schedule that cannot be made, and Muon where its update would not be Muon's."""
    for model in ("actor", "critic") if run.estimator == "gae" else ("actor",):
        schedule = run.flags[f"{model}.lr_scheduler"]
        if schedule not in SCHEDULES:
            problem = f"is no learning-rate schedule of a run{did_you_mean(schedule, SCHEDULES)}"
            yield refusal(f"{model}.lr_scheduler", problem, schedule, f"one of {', '.join(SCHEDULES)}")
        if run.flags[f"{model}.optim"] == "muon":
            yield from _muon(run, model)


def _muon(run: Run, model: str) -> Iterator[Finding]:
    """Refuse Muon where DeepSpeed 0.19.6 does not orthogonalize the update, or changes its size afterwards."""
    if run.ds.zero_stage == 0:
        problem = f"makes --{model}.optim muon plain SGD, as DeepSpeed orthogonalizes gradients in ZeRO-1 and ZeRO-2"
        yield refusal("ds.zero_stage", problem, 0, "1 or 2")
    if run.ds.zero_stage == 3:
        yield refusal("ds.zero_stage", f"crashes with --{model}.optim muon while models load", 3, "1 or 2")
    norm = run.flags[f"{model}.max_norm"]
    if norm > 0:
        problem = "clips Muon's update after it was orthogonalized, so that it is some hundred times smaller"
        yield refusal(f"{model}.max_norm", problem, norm, "0: the size of Muon's update is bounded")


def average(run: Run) -> Iterator[Finding]:
    """Refuse a moving average without ZeRO, whose optimizer has no float32 weights by rank."""
    if run.train.enable_ema and run.ds.zero_stage == 0:
        yield refusal("train.enable_ema", "averages the float32 weights of ZeRO", True, "--ds.zero_stage 1 too")


def kl_loss(run: Run) -> Iterator[Finding]:
    """Refuse a KL term whose gradient is the same on either side of the reference model.

    The derivative of k1 = log pi - log pi_ref by log pi is 1 wherever pi is; its mean over samples of pi is 0.
    """
    kl = run.algo.kl
    if kl.use_loss and kl.init_coef > 0 and kl.estimator == "k1" and not kl.unbiased_gradient:
        problem = "does not pull to the reference model in a loss: its gradient is the same wherever the policy is"
        yield refusal("algo.kl.estimator", problem, kl.estimator, "k3 or k2, or --algo.kl.unbiased_gradient")
