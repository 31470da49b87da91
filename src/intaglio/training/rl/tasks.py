"""Learning from rewards as tasks: PPO and GRPO put together from a recipe."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from intaglio.checkpoints.classifiers import save_classifier
from intaglio.checkpoints.save import save_model
from intaglio.data.preference_encoding import PromptExample
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier, decoder_of, init_head
from intaglio.models.sharing import sharing
from intaglio.models.value import ActorCritic
from intaglio.specs.adapter import LoRASpec
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.batching.batches import Batch, BatchStream
from intaglio.training.batching.data import Data
from intaglio.training.batching.prompts import PromptBatch, prompts_of
from intaglio.training.measuring.exam import Examined
from intaglio.training.objectives.actions import Reader
from intaglio.training.objectives.grpo import GRPO
from intaglio.training.objectives.objective import Objective
from intaglio.training.objectives.ppo import PPO
from intaglio.training.objectives.rl_specs import GRPOSpec, PPOSpec
from intaglio.training.objectives.watch import Watch
from intaglio.training.processes.ranks import ALONE, Ranks
from intaglio.training.recipe import Recipe
from intaglio.training.reference import ReferenceKind, Starting, starting_model
from intaglio.training.rl.collecting import Collector
from intaglio.training.rl.judging import ByCritic, ByGroup, Judge
from intaglio.training.rl.kl_control import AdaptiveKL, FixedKL, KLControl
from intaglio.training.rl.rewards import build_rewards
from intaglio.training.rl.rollout_stream import PlainText, Plan, PromptOrder, RolloutStream
from intaglio.training.rl.rollouts import Rollout, RolloutBatch
from intaglio.training.rl.scorers import load_scorer
from intaglio.training.rollout import Drawing
from intaglio.training.start import build_decoder

__all__ = ["GroupPolicy", "PolicyWithCritic"]


class _FromRewards:
    """What both have in common: answers are drawn, judged and learned from."""

    predicts_text = False

    def __init__(self, recipe: Recipe, spec: PPOSpec | GRPOSpec, data: Data, ranks: Ranks) -> None:
        assert data.prompts is not None
        self._recipe, self._data, self._known, self._ranks = recipe, data, data.prompts, ranks
        self._shared, self._watch = spec, Watch(ranks)
        self._reader = Reader(spec.temperature, spec.chunk)
        self._drawing = Drawing(
            spec.max_completion_length, spec.temperature, spec.stop, spec.stop_token_ids, spec.at_once
        )
        self._model: Any = None
        self._collector: Collector | None = None
        self._starting: Starting | None = None

    @property
    def _plan(self) -> Plan:
        spec, recipe = self._shared, self._recipe
        return Plan(
            recipe.micro_batch,
            recipe.accumulation * self._ranks.count,
            mini_batches=spec.num_mini_batches,
            epochs=spec.epochs,
            group=spec.group,
            longest=spec.max_completion_length,
        )

    @property
    def _compares(self) -> bool:
        raise NotImplementedError

    @property
    def _judge(self) -> Judge:
        raise NotImplementedError

    def _ready(self, model: Any, tokenizer: Tokenizer) -> Any:
        """Keeps what makes rollouts; gives the model back."""
        recipe, spec = self._recipe, self._shared
        rewards = build_rewards(spec.rewards, tokenizer, recipe.precision, recipe.device)
        self._model = model
        self._collector = Collector(
            tokenizer,
            rewards,
            self._reader,
            self._judge,
            self._drawing,
            micro_batch=recipe.micro_batch,
            tolerance=spec.tolerance,
            ranks=self._ranks,
        )
        return model

    def _make(self, prompts: Sequence[PromptExample], seed: int) -> tuple[Rollout, dict[str, float]]:
        assert self._collector is not None, "the model comes first"
        reference = self._reference if self._starting else None
        return self._collector.collect(self._model, reference, prompts, self._shared.group, seed)

    def _reference(self, batch: RolloutBatch) -> Tensor:
        """What the policy that the run began with says of the answers."""
        assert self._starting is not None
        with self._starting.of(decoder_of(self._model)) as frozen:
            return self._reader.log_probs(frozen, batch)

    def _stream(self, plan: Plan, control: KLControl | None = None, text: PlainText | None = None) -> BatchStream:
        seed = self._recipe.seed
        prompts = PromptOrder(self._data.train, self._known, seed)
        stream: Any = RolloutStream(prompts, plan, self._make, self._watch, control=control, seed=seed, text=text)
        return stream

    def _examined(self, objective: Objective) -> Objective:
        """Held-out prompts are answered, what was drawn is learned from."""
        assert self._collector is not None, "the model comes first"
        if self._compares:
            kind: ReferenceKind = "adapter_off" if isinstance(self._recipe.adapter, LoRASpec) else "copy"
            self._starting = starting_model(kind, decoder_of(self._model))
        how = replace(self._drawing, temperature=0.0)
        made_by = self._collector
        return Examined(objective, made_by.tokenizer, made_by.rewards, how, self._starting, self._ranks)

    def held_out(self) -> list[Batch]:
        """See `Task`."""
        prompts = prompts_of([self._data.validation], self._known)
        return [PromptBatch.of(prompts)] if prompts else []


class PolicyWithCritic(_FromRewards):
    """PPO."""

    def __init__(self, recipe: Recipe, spec: PPOSpec, data: Data, ranks: Ranks = ALONE) -> None:
        super().__init__(recipe, spec, data, ranks)
        self._spec = spec
        target = spec.kl_target
        self._control: KLControl = (
            FixedKL(spec.kl_coef) if target is None else AdaptiveKL(spec.kl_coef, target, spec.kl_horizon)
        )

    @property
    def _compares(self) -> bool:
        return True

    @property
    def _judge(self) -> Judge:
        spec = self._spec
        return ByCritic(
            self._control,
            estimator=spec.kl_estimator,
            gamma=spec.gamma,
            lam=spec.lam,
            whiten_rewards=spec.whiten_rewards,
            penalty=spec.missing_eos_penalty,
        )

    def stream(self) -> BatchStream:
        """See `Task`."""
        return self._stream(replace(self._plan, target_kl=self._spec.target_kl), self._control, self._plain_text())

    def _plain_text(self) -> PlainText | None:
        ptx, text = self._spec.ptx, self._data.text
        if ptx is None or text is None:
            return None
        return PlainText(BatchStream(text, ptx.micro_batch, ptx.max_length, seed=self._recipe.seed))

    def model(self, tokenizer: Tokenizer) -> Any:
        """See `Task`."""
        decoder = build_decoder(self._recipe, tokenizer)
        critic = self._critic(decoder) if self._spec.value == "own" else None
        return self._ready(ActorCritic(decoder, critic, self._recipe.seed + 1), tokenizer)

    def _critic(self, decoder: Decoder) -> SequenceClassifier:
        """A critic of its own: from a reward model, or from the policy's weights and a new matrix."""
        start = self._spec.value_from
        if start is None:
            own = sharing(decoder) if self._recipe.adapter else copy.deepcopy(decoder)
            critic = SequenceClassifier(own, 1)
            init_head(critic, self._recipe.seed + 1)
        else:
            critic = self._loaded_critic(start, decoder.spec.vocab_size)
        critic.drop_outputs()
        return critic

    def _loaded_critic(self, name: str, vocab_size: int) -> SequenceClassifier:
        where, dtype = "objective: value_from", self._recipe.precision if self._recipe.adapter else "float32"
        critic, _ = load_scorer(name, dtype, self._recipe.device, where)
        if critic.spec.vocab_size < vocab_size:  # it may have more: a reward model has a pad token
            what = f"{name} has {critic.spec.vocab_size} tokens"
            raise UserError(what, where=where, mend=f"a critic has the policy's {vocab_size} tokens")
        return critic

    def objective(self) -> Objective:
        """See `Task`."""
        spec = self._spec
        ppo = PPO(
            self._reader,
            self._watch,
            cliprange=spec.cliprange,
            cliprange_value=spec.cliprange_value,
            vf_coef=spec.vf_coef,
            ptx=spec.ptx.coefficient if spec.ptx else 0.0,
        )
        return self._examined(ppo)

    def save(self, model: Any, path: Path, tokenizer: Tokenizer) -> None:
        """See `Task`; the critic goes into a folder `value` beside, as a model with one score."""
        save_model(model.decoder, path, tokenizer)
        save_classifier(model.head(), path.parent / "value", tokenizer)


class GroupPolicy(_FromRewards):
    """GRPO."""

    def __init__(self, recipe: Recipe, spec: GRPOSpec, data: Data, ranks: Ranks = ALONE) -> None:
        super().__init__(recipe, spec, data, ranks)
        self._spec = spec

    @property
    def _compares(self) -> bool:
        return self._spec.beta > 0

    @property
    def _judge(self) -> Judge:
        spec = self._spec
        return ByGroup(spec.num_generations, spec.scale_rewards, mask_truncated=spec.mask_truncated_completions)

    def stream(self) -> BatchStream:
        """See `Task`."""
        return self._stream(replace(self._plan, aggregation=self._spec.loss_type))

    def model(self, tokenizer: Tokenizer) -> Any:
        """See `Task`."""
        return self._ready(build_decoder(self._recipe, tokenizer), tokenizer)

    def objective(self) -> Objective:
        """See `Task`."""
        spec = self._spec
        grpo = GRPO(
            self._reader,
            self._watch,
            epsilon=spec.epsilon,
            epsilon_high=spec.epsilon_high,
            beta=spec.beta,
            ratio_of=spec.ratio_of,
        )
        return self._examined(grpo)

    def save(self, model: Any, path: Path, tokenizer: Tokenizer) -> None:
        """See `Task`."""
        save_model(model, path, tokenizer)
