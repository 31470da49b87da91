"""What a recipe says of learning from rewards: PPO and GRPO, as data.

A rollout is as many answers as `num_mini_batches` optimizer steps take, each of `micro_batch` times `accumulation`
answers, and is learned from several times over. The data are prompts; `max_length` bounds prompt and answer together.
"""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from intaglio.specs import Spec
from intaglio.training.objectives.policy_loss import Aggregation, RatioOf
from intaglio.training.rl.advantages import Scaling
from intaglio.training.rl.kl_control import Estimator

__all__ = ["GRPOSpec", "PPOSpec", "PlainTextSpec", "RewardSpec"]


class RewardSpec(Spec):
    """One thing that answers are judged by; one of `function`, `model` and `pattern`.

    Attributes:
        function: `arithmetic` (the last number is that of the row's `answer`), or FILE.py:name, a function of the
            user's own, which is run (see `verifiers`).
        model: a reward model's directory.
        pattern: a regular expression that the whole answer is to match.
        weight: in the sum of all rewards.
    """

    function: str | None = None
    model: str | None = None
    pattern: str | None = None
    weight: float = 1.0

    @model_validator(mode="after")
    def _one(self) -> "RewardSpec":
        given = [name for name in ("function", "model", "pattern") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("give one of function, model and pattern")
        return self


class PlainTextSpec(Spec):
    """Text that is learned beside the rewards, so that less is forgotten (PPO-ptx, Ouyang et al. 2022, section 3.5).

    Attributes:
        data: a path, or the name of a data set.
        coefficient: of its mean loss; InstructGPT has 27.8.
        micro_batch: rows beside each micro-batch of answers.
        max_length: tokens of a row.
    """

    data: str
    coefficient: float = Field(1.0, gt=0)
    micro_batch: int = Field(1, gt=0)
    max_length: int = Field(512, gt=1)


class _FromRewards(Spec):
    """What PPO and GRPO share.

    Attributes:
        rewards: what answers are judged by.
        max_completion_length: tokens of an answer.
        temperature: of sampling, and of the policy that is learned.
        stop: texts that end an answer, beside the model's own EOS.
        stop_token_ids: tokens that do.
        num_mini_batches: optimizer steps that a rollout is cut into.
        at_once: answers that are made together at most.
        chunk: see `LanguageModelSpec`.
        tolerance: how far the engine's log-probabilities may be from the trainer's on average before the run is ended;
            None takes `collecting.TOLERANCES`.
    """

    meaningless: ClassVar[tuple[str, ...]] = ("packing", "neftune", "supervise", "streaming", "yardsticks", "code")
    dropout: ClassVar[bool] = False  # or the likelihoods of answers would not be those that drew them
    rewards: tuple[RewardSpec, ...] = Field(min_length=1)
    max_completion_length: int = Field(128, gt=0)
    temperature: float = Field(1.0, gt=0)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    num_mini_batches: int = Field(1, gt=0)
    at_once: int = Field(256, gt=0)
    chunk: int = Field(1024, gt=0)
    tolerance: float | None = Field(None, gt=0)

    @property
    def group(self) -> int:
        """Answers to one prompt."""
        raise NotImplementedError

    def require_fit(self, per_step: int, max_length: int) -> None:
        """Whether rollouts of so many answers a step hold whole groups, and rows of `max_length` room for a prompt.

        Raises:
            ValueError: they do not.
        """
        answers = per_step * self.num_mini_batches
        if answers % self.group:
            how = "micro_batch * accumulation * num_mini_batches"
            raise ValueError(f"a rollout of {answers} answers ({how}) holds no whole number of groups of {self.group}")
        if self.max_completion_length >= max_length:
            raise ValueError(f"max_length {max_length} leaves no room for a prompt before the answer")


class PPOSpec(_FromRewards):
    """See `objectives.ppo`; defaults are TRL's but for the length of an answer.

    Attributes:
        num_ppo_epochs: how often a rollout is learned from.
        kl_coef: weight of the divergence from the reference in the rewards.
        kl_estimator: see `kl_control.divergence`.
        kl_target: nats of an answer that the weight is steered to; None leaves it as it is.
        kl_horizon: see `AdaptiveKL`.
        cliprange, cliprange_value, vf_coef: see `objectives.ppo`.
        gamma, lam: see `advantages.gae`.
        whiten_rewards: whether rewards of tokens get a variance of 1, their mean kept.
        missing_eos_penalty: taken from the score of an answer that did not end.
        target_kl: mean approximate KL of a step (half the squared log-ratio) beyond which the rest of the rollout is
            left alone; None: never.
        value: a critic of its `own`, as large as the policy, or one matrix on features that are `shared` with it.
        value_from: a directory with one score (a reward model) that a critic of its own starts from; None: the policy's
            weights.
        ptx: see `PlainTextSpec`.
    """

    kind: Literal["ppo"] = "ppo"
    temperature: float = Field(0.7, gt=0)
    num_ppo_epochs: int = Field(4, gt=0)
    kl_coef: float = Field(0.05, ge=0)
    kl_estimator: Estimator = "k1"
    kl_target: float | None = Field(None, gt=0)
    kl_horizon: int = Field(10_000, gt=0)
    cliprange: float = Field(0.2, gt=0)
    cliprange_value: float = Field(0.2, gt=0)
    vf_coef: float = Field(0.1, ge=0)
    gamma: float = Field(1.0, ge=0, le=1)
    lam: float = Field(0.95, ge=0, le=1)
    whiten_rewards: bool = False
    missing_eos_penalty: float | None = Field(None, gt=0)
    target_kl: float | None = Field(None, gt=0)
    value: Literal["own", "shared"] = "own"
    value_from: str | None = None
    ptx: PlainTextSpec | None = None

    @model_validator(mode="after")
    def _meant(self) -> "PPOSpec":
        if self.value == "shared" and self.value_from is not None:
            raise ValueError("value_from is of a critic of its own: take value own, or leave it out")
        return self

    @property
    def group(self) -> int:
        """Answers to one prompt."""
        return 1

    @property
    def epochs(self) -> int:
        """How often a rollout is learned from."""
        return self.num_ppo_epochs


class GRPOSpec(_FromRewards):
    """See `objectives.grpo`; defaults are TRL's but for the length of an answer.

    Attributes:
        num_generations: answers to one prompt.
        num_iterations: how often a rollout is learned from.
        beta: weight of the divergence from the reference; 0 needs none.
        epsilon, epsilon_high: see `objectives.grpo`.
        loss_type: how tokens become one number, see `rollouts.weighed`.
        ratio_of: whose ratio is clipped, a `token`'s or the `sequence`'s (TRL: importance_sampling_level).
        scale_rewards: see `advantages.group_advantages`.
        mask_truncated_completions: whether answers that did not end are left out.
    """

    kind: Literal["grpo"] = "grpo"
    num_generations: int = Field(8, gt=1)
    num_iterations: int = Field(1, gt=0)
    beta: float = Field(0.0, ge=0)
    epsilon: float = Field(0.2, gt=0)
    epsilon_high: float | None = Field(None, gt=0)
    loss_type: Aggregation = "dapo"
    ratio_of: RatioOf = "token"
    scale_rewards: Scaling = "group"
    mask_truncated_completions: bool = False

    @property
    def group(self) -> int:
        """Answers to one prompt."""
        return self.num_generations

    @property
    def epochs(self) -> int:
        """How often a rollout is learned from."""
        return self.num_iterations
