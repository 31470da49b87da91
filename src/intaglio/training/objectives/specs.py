"""What a recipe may ask to be minimised, as data."""

from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from intaglio.specs import Spec
from intaglio.specs.base import kind_or
from intaglio.training.objectives.preference_specs import DPOSpec, KTOSpec, ORPOSpec, PairwiseRewardSpec, PreferenceSpec
from intaglio.training.objectives.rl_specs import GRPOSpec, PPOSpec

__all__ = [
    "Carry",
    "ClassifierSpec",
    "DPOSpec",
    "GRPOSpec",
    "KTOSpec",
    "LanguageModelSpec",
    "ORPOSpec",
    "ObjectiveSpec",
    "PPOSpec",
    "PairwiseRewardSpec",
    "PreferenceSpec",
    "Seq2SeqSpec",
    "TaggerSpec",
    "TruncatedBPTTSpec",
]

Carry = Literal["document", "text"]

_OF_DECODERS = ("neftune", "compile", "checkpointing", "adapter", "quantization")
_OF_TEXTS = ("supervise", "yardsticks", "code")


class _Objective(Spec):
    meaningless: ClassVar[tuple[str, ...]] = ()
    """Keys of a recipe that say nothing here, and are refused."""


class LanguageModelSpec(_Objective):
    """See `objectives.language_model`."""

    kind: Literal["language_model"] = "language_model"
    chunk: int = Field(1024, gt=0)
    z_loss: float = Field(0.0, ge=0)


class ClassifierSpec(_Objective):
    """See `objectives.classifier`.

    Attributes:
        labels: their names in order; none takes those of the data, sorted.
        lm_weight: of the next-token loss beside the class loss.
        chunk: see `LanguageModelSpec`.
        delimiter: stands between `text` and `text_pair`; GPT-1 has `$`.
    """

    meaningless = ("supervise", "sample_every", "neftune")
    kind: Literal["classifier"] = "classifier"
    labels: tuple[str | int, ...] = ()
    lm_weight: float = Field(0.5, ge=0)
    chunk: int = Field(1024, gt=0)
    delimiter: str = "$"


class TruncatedBPTTSpec(_Objective):
    """A recurrent language model, see `objectives.truncated_bptt` and `lanes`; a micro-batch is a lane for each row.

    Attributes:
        carry: what the state goes across: the steps that a `document` is read in, or the whole `text` of a lane, where
            a document begins with what the one before left.
        chunk: see `LanguageModelSpec`.
    """

    meaningless = (*_OF_DECODERS, "packing")
    kind: Literal["truncated_bptt"] = "truncated_bptt"
    carry: Carry = "document"
    chunk: int = Field(1024, gt=0)


class Seq2SeqSpec(_Objective):
    """An encoder-decoder on rows of prompt and completion, see `objectives.seq2seq`; a micro-batch is so many pairs.

    Attributes:
        label_smoothing: see `objectives.seq2seq`.
        scheduled_sampling: how often a recurrent decoder reads its own last choice in place of the target's token
            (Bengio et al. 2015, arXiv 1506.03099).
    """

    meaningless = (*_OF_DECODERS, *_OF_TEXTS, "packing", "streaming")
    kind: Literal["seq2seq"] = "seq2seq"
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    scheduled_sampling: float = Field(0.0, ge=0, le=1)


class TaggerSpec(_Objective):
    """A tag for each token, on rows of `tokens` and `tags`, see `objectives.tagger`.

    Attributes:
        tags: their names in order; none takes those of the data, sorted.
    """

    meaningless = (*_OF_DECODERS, *_OF_TEXTS, "streaming", "sample_every", "answers")
    kind: Literal["tagger"] = "tagger"
    tags: tuple[str, ...] = ()


ObjectiveSpec = Annotated[
    Annotated[LanguageModelSpec, Tag("language_model")]
    | Annotated[ClassifierSpec, Tag("classifier")]
    | Annotated[TruncatedBPTTSpec, Tag("truncated_bptt")]
    | Annotated[Seq2SeqSpec, Tag("seq2seq")]
    | Annotated[TaggerSpec, Tag("tagger")]
    | Annotated[PairwiseRewardSpec, Tag("reward")]
    | Annotated[DPOSpec, Tag("dpo")]
    | Annotated[ORPOSpec, Tag("orpo")]
    | Annotated[KTOSpec, Tag("kto")]
    | Annotated[PPOSpec, Tag("ppo")]
    | Annotated[GRPOSpec, Tag("grpo")],
    Discriminator(kind_or("language_model")),
]
"""A language model where no `kind` is given."""
