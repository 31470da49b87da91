"""What is to be done with a model, as data: the part of a recipe that memory depends on. No torch."""

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from intaglio.specs.adapter import LoRASpec
from intaglio.specs.base import Spec
from intaglio.specs.quantization import QuantizationSpec

__all__ = ["JOBS", "Checkpointing", "Job", "JobSpec", "OptimizerName", "Precision"]

Job = Literal["pretrain", "sft", "reward", "dpo", "orpo", "kto", "ppo", "grpo"]
JOBS: Final[tuple[Job, ...]] = ("pretrain", "sft", "reward", "dpo", "orpo", "kto", "ppo", "grpo")
Precision = Literal["bfloat16", "float32", "float16"]
OptimizerName = Literal["adamw", "paged_adamw", "muon"]
Checkpointing = Literal["selective"] | Annotated[int, Field(ge=0)]

_PAIRS = ("reward", "dpo", "orpo", "kto")
_REFERRED = ("dpo", "kto", "ppo", "grpo")
_DRAWN = ("ppo", "grpo")


class JobSpec(Spec):
    """A training job; serving has a spec of its own (`serving.ServingSpec`).

    Attributes:
        job: the objective.
        adapter: what trains in place of the weights; None: they do.
        quantization: of the frozen weights.
        dtype: what the model computes in; masters, gradients and moments are fp32.
        optimizer: `paged_adamw` has its moments in the host's memory; `muon` keeps one moment for matrices in layers.
        sequence: tokens of a sequence; of a comparison, of each of its two answers with the prompt; where answers are
            drawn, of prompt and answer.
        micro_batch: sequences, comparisons or answers that a rank runs together.
        accumulation: micro-batches of an optimizer step.
        checkpointing: see `Recipe`.
        products: of a layer that is checkpointed selectively every so many-th product is kept: 1 in our training, 2 in
            torchtitan's, for comparison.
        chunk: tokens whose logits exist at once; None: all of them.
        documents: whether sequences are packed; else each is a row of its own, and attention keeps less.
        reference: a frozen copy of the `model`, the same weights with the adapter `off`, or log-probabilities that were
            computed before (`stored`); None takes what training does: off beside a new adapter, else stored for DPO and
            a copy for KTO, PPO and GRPO.
        beta: weight of the divergence in GRPO's loss; 0 needs no reference.
        value: PPO's critic: a model of its `own`, or a matrix on features `shared` with the policy.
        reward_models: models of the policy's size that judge answers.
        mini_batches: optimizer steps that a rollout is cut into.
        at_once: answers that are drawn together at most.
        ptx: rows of plain text that PPO learns beside each micro-batch; what they take is not counted.
        compile: torch.compile, whose memory is not counted apart.
        neftune: see `Recipe`.
    """

    job: Job = "sft"
    adapter: LoRASpec | None = None
    quantization: QuantizationSpec | None = None
    dtype: Precision = "bfloat16"
    optimizer: OptimizerName = "adamw"
    sequence: int = Field(2048, gt=1)
    micro_batch: int = Field(1, gt=0)
    accumulation: int = Field(1, gt=0)
    checkpointing: Checkpointing = 0
    products: int = Field(1, gt=0)
    chunk: Annotated[int, Field(gt=0)] | None = 1024
    documents: bool = True
    reference: Literal["model", "off", "stored"] | None = None
    beta: float = Field(0.0, ge=0)
    value: Literal["own", "shared"] = "own"
    reward_models: int = Field(1, ge=0)
    mini_batches: int = Field(1, gt=0)
    at_once: int = Field(256, gt=0)
    ptx: Annotated[int, Field(gt=0)] | None = None
    compile: bool = False
    neftune: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _meant(self) -> "JobSpec":
        if self.quantization is not None and self.adapter is None:
            raise ValueError("quantization: weights of a few bits do not train; give an adapter that does")
        if self.reference == "off" and self.adapter is None:
            raise ValueError("reference off: without an adapter there is nothing to switch off")
        if self.reference is not None and self.job not in _REFERRED:
            raise ValueError(f"reference means nothing to job {self.job}")
        if self.reference == "stored" and self.job != "dpo":
            raise ValueError(f"reference stored: {self.job} asks it of answers that are not known before")
        return self

    @property
    def tokens(self) -> int:
        """Of a micro-batch on one rank (of those that share a sequence, on all)."""
        return self.sequence * self.micro_batch * (2 if self.compares else 1)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of the sequences in it."""
        return (self.sequence,) * (self.tokens // self.sequence)

    @property
    def compares(self) -> bool:
        """Whether a row holds two answers."""
        return self.job in _PAIRS

    @property
    def draws(self) -> bool:
        """Whether it learns from answers of its own."""
        return self.job in _DRAWN

    @property
    def scores(self) -> bool:
        """Whether a head with one score stands in the output matrix's place."""
        return self.job == "reward"

    @property
    def kept_reference(self) -> Literal["model", "off", "stored"] | None:
        """The reference as it is; None: there is none."""
        if self.job not in _REFERRED or (self.job == "grpo" and self.beta == 0):
            return None
        if self.reference is not None:
            return self.reference
        return "off" if self.adapter is not None else "stored" if self.job == "dpo" else "model"

    @property
    def answers_drawn(self) -> int:
        """Answers that have keys and values at one time on a rank."""
        return min(self.at_once, self.micro_batch * self.accumulation * self.mini_batches)
