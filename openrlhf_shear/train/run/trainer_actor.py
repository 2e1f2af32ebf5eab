"""Ray actor in the place of OpenRLHF's trainer: makes the parts of a run, and lets `ShearTrainer` run it."""

from pathlib import Path

import ray
from openrlhf.trainer.ppo_utils.kl_controller import AdaptiveKLController, FixedKLController
from openrlhf.trainer.ray.launcher import RayActorGroup
from openrlhf.utils.utils import get_tokenizer

from openrlhf_shear.credit.registry import load_rule
from openrlhf_shear.credit.rule import CreditRule
from openrlhf_shear.data.files import DataError
from openrlhf_shear.evaluation.suite import SUITE_AVERAGE, write_run_facts
from openrlhf_shear.rewards.settings import RewardSettings
from openrlhf_shear.train.checkpoints import folders
from openrlhf_shear.train.experience.experience_maker import CreditExperienceMaker
from openrlhf_shear.train.experience.graded_experience import GradedExperienceMaker
from openrlhf_shear.train.experience.prm import StepScorer, start_prm
from openrlhf_shear.train.run.books import Advantages, compares_rewards
from openrlhf_shear.train.run.dump import RolloutDump
from openrlhf_shear.train.run.evaluation import Evaluation, TrainingSuite
from openrlhf_shear.train.run.learner import Learner, send_weights
from openrlhf_shear.train.run.saving import Saver
from openrlhf_shear.train.run.tracking import Tracking, passed_over
from openrlhf_shear.train.run.trainer import ShearTrainer, Stop
from openrlhf_shear.train.sampling.batches import Batches, BatchesAhead
from openrlhf_shear.train.sampling.engine_gap import GapWatch
from openrlhf_shear.train.sampling.engines import Engines
from openrlhf_shear.train.sampling.grading import checked_pools
from openrlhf_shear.train.sampling.order import optimizer_steps, steps_from
from openrlhf_shear.train.sampling.prompt_data import read_prompts
from openrlhf_shear.train.sampling.samples import ShearSamplesGenerator
from openrlhf_shear.train.screen import relay
from openrlhf_shear.train.screen.events import Event
from openrlhf_shear.train.screen.outcome import RefusedError
from openrlhf_shear.train.screen.story import doing, say


class TrainerActor:
    """Trainer as OpenRLHF's main calls it: made before the models load, then `get_max_steps`, then `fit`.

    With `args.credit` None it trains as upstream does, with the promises of `docs/reliability.md`. With
    `--train.async_enable` batches are made while it trains.
    """

    reward: RewardSettings | None = None  # None if rewards come from a model

    def __init__(
        self,
        pretrain: str,
        strategy,
        policy: RayActorGroup,
        critics: RayActorGroup | None,
        reward_models: RayActorGroup | None,
        references: RayActorGroup | None,
        engines: list[ray.actor.ActorHandle],
        **generate_kwargs,
    ):
        self._refused = ""  # reason of a refusal, raised in `get_max_steps`: an error here kills the actor
        self._args, self._critics = strategy.args, critics
        self._models_load: list[ray.ObjectRef] = []
        fast = not self._args.data.disable_fast_tokenizer
        try:
            self._lock = folders.lock_own(self._args.ckpt)  # first: before anything is written
            self._tracking = Tracking(self._args)
            self._tokenizer = get_tokenizer(pretrain, None, "left", strategy, use_fast=fast)
            self._prompts = read_prompts(strategy, self._tokenizer)
        except (folders.NotOursError, DataError) as error:
            self._refused = str(error)
            return
        self._tracking.start()
        kl = self._args.algo.kl
        adaptive = AdaptiveKLController(kl.init_coef, kl.target, kl.horizon) if kl.target else None
        control = adaptive or FixedKLController(kl.init_coef)
        maker = self._experience_maker(policy, critics, reward_models, references, control, strategy)
        self._trainer = self._build(maker, engines, generate_kwargs)

    def get_max_steps(self) -> int:
        """Return the number of optimizer steps, after checks: upstream calls this before it loads the models.

        Raises:
            RefusedError: a data set cannot be used, the folder is another run's, the policy would never learn, or
                a node cannot grade.
        """
        if self._refused:
            raise RefusedError(self._refused)
        refuse_frozen(self._args, len(self._prompts.order), self._critics is not None)
        if self.reward and not self.reward.is_served:
            self._pools = checked_pools(self.reward)
        doing("loading the models")
        return optimizer_steps(self._args, len(self._prompts.order))

    def fit(self) -> None:
        """Run the training loop (`ShearTrainer.fit`)."""
        ray.get(self._models_load)
        self._trainer.fit()

    @ray.method(concurrency_group="control")
    def ask_to_stop(self, why: str) -> None:
        """Ask `fit` to stop at the next safe point, with a checkpoint."""
        self._trainer.stop.why = why

    @ray.method(concurrency_group="output")
    def printed(self, seen: int, patience: float) -> tuple[int, list[Event]]:
        """Return this process's events for the driver to show (`Relay.fetch`), while `fit` runs."""
        return relay.diverted().fetch(seen, patience)

    def _check_folder(self) -> None:
        before, path = self._lock, self._args.ckpt.path
        try:
            self._lock = folders.lock_again(Path(path), before)
        except folders.NotOursError as error:
            raise RefusedError(str(error)) from None
        if self._lock is not before:
            say(f"--ckpt.path {path} was removed; this save makes it again")

    def _experience_maker(self, policy, critics, reward_models, references, kl, strategy) -> GradedExperienceMaker:
        """Make the experience maker by the run's credit rule; a process reward model of the rule begins to load."""
        parts = (policy, critics, reward_models, references, kl, strategy, self._tokenizer)
        spec = self._args.credit
        rule = None if spec is None else load_rule(spec)
        if not isinstance(rule, CreditRule):
            return GradedExperienceMaker(*parts)
        scorer = None
        if "prm_scores" in rule.needs:
            colocated = self._args.train.colocate_all
            group, self._models_load = start_prm(spec.prm, strategy, policy if colocated else None)
            problems = self._prompts.training.dataset.problems
            scorer = StepScorer(group, spec.prm, self._tokenizer, problems, colocated)
        return CreditExperienceMaker(*parts, rule=rule, step_scorer=scorer)

    def _build(self, maker: GradedExperienceMaker, handles: list, generate_kwargs: dict) -> ShearTrainer:
        args, prompts = self._args, self._prompts
        loaders = prompts.training, prompts.evaluation
        with passed_over("run.json"):
            write_run_facts(args, *(loader and loader.dataset.digest for loader in loaders))
        ahead, stop, policy = args.train.async_enable, Stop(), maker.actor_model_group
        engines = Engines(handles, None if ahead else lambda: send_weights(policy))
        generator = ShearSamplesGenerator(maker.strategy, *loaders, self._tokenizer, engines, prompts.order)
        watch = GapWatch(args, engines)
        generator.check_stop, generator.sampled, maker.judge_gap = stop.check, watch.sampled, watch.judge
        source = (generator, args.train.num_episodes, generate_kwargs)
        batches = BatchesAhead(*source, room=args.train.async_queue_size) if ahead else Batches(*source)
        suite = TrainingSuite(args, engines, self._tokenizer, stop.check) if args.eval.suite else None
        compares = self.reward and not maker.makes_advantages and compares_rewards(args)
        return ShearTrainer(
            args,
            Learner(maker, engines, batches),
            batches,
            Saver(policy, self._critics, self._check_folder),
            Evaluation(args, self._tracking, generator, prompts.evaluation, suite, generate_kwargs),
            self._tracking,
            args.fingerprint.with_data(prompts.training.dataset.fingerprint),
            len(prompts.order),
            best_key=args.ckpt.best_metric_key or (SUITE_AVERAGE if suite else ""),
            advantages=Advantages(args.rollout.n_samples_per_prompt) if compares else None,
            dump=RolloutDump(args, maker.rule_name, self._tokenizer) if maker.rule_name else None,
            stop=stop,
        )


def refuse_frozen(args, prompts: int, has_critic: bool) -> None:
    """Refuse a run in which the critic alone would learn.

    Args:
        prompts: the number of prompts of an episode.
    """
    frozen, steps = args.critic.freezing_steps, steps_from(args, prompts, 0, 0)
    if has_critic and frozen >= steps:
        why = f"--critic.freezing_steps {frozen}: the policy would learn in none of the run's {steps} steps"
        raise RefusedError(f"{why}; use fewer, or -1")
