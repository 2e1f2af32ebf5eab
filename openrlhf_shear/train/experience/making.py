"""The experience maker of a run, by its credit rule."""

import ray
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

from openrlhf_shear.credit.registry import load_rule
from openrlhf_shear.credit.rule import CreditRule
from openrlhf_shear.train.experience.experience_maker import CreditExperienceMaker
from openrlhf_shear.train.experience.graded_experience import GradedExperienceMaker
from openrlhf_shear.train.experience.prm import StepScorer, start_prm

_PARTS = ("actor_model_group", "critic_model_group", "reward_model_group", "initial_model_group")


def make_experience_maker(
    upstream: RemoteExperienceMaker, problems: dict[str, str]
) -> tuple[GradedExperienceMaker, list[ray.ObjectRef]]:
    """Return the experience maker that takes the place of upstream's, and references of the models that it loads.

    Args:
        upstream: the maker of upstream's constructor.
        problems: the problem, without templates, of each prompt; a process reward model reads it.
    """
    strategy, args = upstream.strategy, upstream.strategy.args
    parts = (*(getattr(upstream, name) for name in _PARTS), upstream.kl_ctl, strategy, upstream.tokenizer)
    rule = None if args.credit is None else load_rule(args.credit)
    if not isinstance(rule, CreditRule):
        return GradedExperienceMaker(*parts), []
    scorer, loads = None, []
    if "prm_scores" in rule.needs:
        config, colocated = args.credit.prm, args.train.colocate_all
        group, loads = start_prm(config, strategy, upstream.actor_model_group if colocated else None)
        scorer = StepScorer(group, config, upstream.tokenizer, problems, colocated)
    return CreditExperienceMaker(*parts, rule=rule, step_scorer=scorer), loads
