"""What a recipe says of learning from comparisons, as data: a reward model, DPO, ORPO, KTO.

A row of a micro-batch holds two answers of `max_length` tokens with their prompt, or as many shorter examples.
"""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from intaglio.specs import Spec

__all__ = ["DPOSpec", "KTOSpec", "ORPOSpec", "PairwiseRewardSpec", "PreferenceSpec"]

_OF_TEXTS = ("supervise", "yardsticks", "code", "answers")
_OF_ROWS = ("streaming", "split_by", "near_duplicates", "neftune")


class PreferenceSpec(Spec):
    """What all of them share.

    Attributes:
        dropout: whether an adapter's dropout stays on. Off, as is usual here: the reference has none, and what it
            changes would be taken for what was learned.
        chunk: tokens whose logits exist at once.
    """

    meaningless: ClassVar[tuple[str, ...]] = (*_OF_TEXTS, *_OF_ROWS)
    dropout: bool = False
    chunk: int = Field(1024, gt=0)


class _Referred(PreferenceSpec):
    """What is held to a reference.

    Attributes:
        beta: how far.
        reference: how it is kept, see `reference`.
    """

    beta: float = Field(0.1, gt=0)
    reference: Literal["auto", "adapter_off", "copy", "precomputed"] = "auto"


class DPOSpec(_Referred):
    """See `objectives.dpo`.

    Attributes:
        loss: which.
        label_smoothing: share of the labels that are wrong; of `cdpo` and `robust`.
    """

    kind: Literal["dpo"] = "dpo"
    loss: Literal["sigmoid", "cdpo", "robust", "hinge", "ipo", "sigmoid_norm"] = "sigmoid"
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)

    @model_validator(mode="after")
    def _smoothed(self) -> "DPOSpec":
        if self.label_smoothing and self.loss not in ("cdpo", "robust"):
            raise ValueError(f"label_smoothing means nothing to loss {self.loss}: take cdpo or robust")
        return self


class KTOSpec(_Referred):
    """See `objectives.kto`.

    Attributes:
        desirable_weight: of answers that were wanted.
        undesirable_weight: of those that were not.
    """

    kind: Literal["kto"] = "kto"
    desirable_weight: float = Field(1.0, ge=0)
    undesirable_weight: float = Field(1.0, ge=0)

    @model_validator(mode="after")
    def _asked(self) -> "KTOSpec":
        if self.reference == "precomputed":
            what = "of prompts with answers of others, which change with every epoch: take copy"
            raise ValueError(f"reference precomputed: kto asks it {what}")
        return self


class ORPOSpec(PreferenceSpec):
    """See `objectives.orpo`.

    Attributes:
        beta: weight of the odds ratio.
        nll: whether next-token loss counts the prompt's tokens too.
    """

    kind: Literal["orpo"] = "orpo"
    beta: float = Field(0.1, gt=0)
    nll: Literal["all", "completion"] = "all"


class PairwiseRewardSpec(PreferenceSpec):
    """See `objectives.reward`.

    Attributes:
        center: weight of the squared sum of both rewards; 0.01 is usual where it is not 0.
        margin: whether the rows' margins count.
    """

    meaningless: ClassVar[tuple[str, ...]] = (*_OF_TEXTS, *_OF_ROWS, "sample_every")
    kind: Literal["reward"] = "reward"
    center: float = Field(0.0, ge=0)
    margin: bool = True
