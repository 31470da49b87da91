"""A recipe: one run as data. Defaults < YAML < command line; an unknown key is an error."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from intaglio.errors import UserError
from intaglio.planning.refusals import Training, require_shareable, require_whole_step
from intaglio.specs import Spec, load_yaml, validate
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.parallel import ParallelSpec
from intaglio.specs.quantization import QuantizationSpec
from intaglio.training.changes import apply_change
from intaglio.training.measuring.answers import AnswersSpec
from intaglio.training.measuring.closing import CodeSpec
from intaglio.training.measuring.measure_specs import CompareSpec, PairsSpec, TasksSpec
from intaglio.training.objectives.specs import (
    ClassifierSpec,
    DPOSpec,
    GRPOSpec,
    KTOSpec,
    LanguageModelSpec,
    ObjectiveSpec,
    ORPOSpec,
    PairwiseRewardSpec,
    PPOSpec,
    PreferenceSpec,
    Seq2SeqSpec,
)
from intaglio.training.stepping.optimizer import OptimizerSpec
from intaglio.training.stepping.schedule import ScheduleSpec

__all__ = ["AdapterFrom", "Recipe", "SourceSpec", "TokenizerSpec", "load_recipe"]


class SourceSpec(Spec):
    """One source of rows.

    Attributes:
        path: a file, folder or glob, or the name of a data set that `intaglio pull` knows.
        weight: its share of the rows, in relation to the other sources'; for all sources or none.
        cap: rows at most.
    """

    path: str
    weight: float | None = Field(None, gt=0)
    cap: int | None = Field(None, gt=0)


class TokenizerSpec(Spec):
    """A tokenizer to be made from the run's own text.

    Attributes:
        kind: `bpe` over bytes; `characters`, one token each; `words`, what stands between white space. What the last
            two do not know is `<unk>`.
        vocab_size: tokens at most; characters may do without, and are all kept then.
        pattern: see `text.train.train_on`; of bpe.
        special_tokens: that later stages need (a pad token, the marks of a chat template); of bpe.
    """

    kind: Literal["bpe", "characters", "words"] = "bpe"
    vocab_size: int | None = Field(None, gt=4)
    pattern: str | None = None
    special_tokens: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _sized(self) -> "TokenizerSpec":
        if self.vocab_size is None and self.kind != "characters":
            raise ValueError(f"a tokenizer of kind {self.kind} needs vocab_size")
        if self.kind == "bpe" and self.vocab_size is not None and self.vocab_size <= 256:
            raise ValueError("vocab_size: the 256 bytes alone take as many tokens")
        given = "pattern" if self.pattern is not None else "special_tokens" if self.special_tokens else None
        if self.kind != "bpe" and given:
            raise ValueError(f"{given} means nothing to a tokenizer of kind {self.kind}")
        return self


class AdapterFrom(Spec):
    """An adapter to go on with.

    Attributes:
        path: its PEFT directory; a recipe calls it `from`.
    """

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)
    path: str = Field(alias="from")


def _named_or_made(value: object) -> str:
    return "name" if isinstance(value, str) else "tokenizer"


_Tokenizer = Annotated[
    Annotated[str, Tag("name")] | Annotated[TokenizerSpec, Tag("tokenizer")], Discriminator(_named_or_made)
]


def _begun_or_new(value: object) -> str:
    begun = isinstance(value, AdapterFrom) or (isinstance(value, dict) and "from" in value)
    return "AdapterFrom" if begun else "LoRASpec"


_Adapter = Annotated[
    Annotated[AdapterFrom, Tag("AdapterFrom")] | Annotated[LoRASpec, Tag("LoRASpec")], Discriminator(_begun_or_new)
]


class Recipe(Spec):
    """Everything a run depends on.

    Attributes:
        model: start from these weights: a pulled name, a directory, a GGUF file.
        architecture: or from random ones: a preset's name, or a spec.
        adapter: train this beside the frozen weights in place of them; a new one, or `{from: DIR}` goes on with one.
        quantization: keep the frozen matrices in fewer bits.
        tokenizer: the model's own, unless another is named or one is to be made from the data.
        data: a path, or sources to be mixed.
        validation: share of the rows (by hash of their content) that is held out and never trained on.
        split_by: what the hash is of; `file` keeps all rows of a file on one side.
        near_duplicates: held-out rows of which training has more than this share of 13-token windows are removed.
        supervise: which tokens are targets; None goes by the format (all of a text, completions, assistants' turns).
        streaming: read and tokenise the data while training, a window at a time; see `streams`.
        max_length: tokens of a row; of a pair, both sides together; of a lane, in one step.
        over_long: rows beyond it are truncated or dropped; both are counted.
        packing: how rows share a sequence; none gives each its own.
        micro_batch: sequences that run together.
        accumulation: micro-batches of an optimizer step.
        steps, epochs: how long; one of the two.
        precision: what the model computes in; master weights are fp32. float16 scales the loss, on CUDA.
        objective: what is learned: which loss, on which rows.
        optimizer: what steps.
        schedule: how the learning rate rises and falls.
        clip: norm that gradients are scaled down to; 0 does not.
        parallel: how many processes share the work, and what else; None is one process. See `ParallelSpec`.
        checkpointing: keep the input of every so many layers and compute the rest again; 0 keeps everything; selective
            keeps products and attention and computes the rest again.
        compile: torch.compile what knows nothing of documents; see `compiling`.
        neftune: noise on the embeddings while training (Jain et al. 2023); 0 for none.
        evaluate_every, save_every, sample_every: in steps; 0 for never (the end always saves).
        sample_tokens: of a sample at most.
        prompts: what samples continue; an objective that aligns a policy takes held-out prompts where there are none.
        keep: checkpoints that stay.
        answers: held-out conversations to be answered before and after; see `answers`.
        pairs: held-out pairs to be told apart before and after; see `pair_exam`.
        compare: how a policy that is aligned is compared with the model it began as; see `side_by_side`.
        tasks: what `intaglio eval` would ask, put to it while it trains; see `task_exam`.
        yardsticks: print what a byte 5-gram and `xz -9` make of the held-out texts.
        code: samples of code to be parsed at the end; see `closing`.
        tensorboard: write the log's numbers under RUN/tensorboard too.
        patience: evaluations without a better loss after which the run ends; 0 for never.
        seed: of the weights, the order of rows, dropout and samples.
        device: `cpu`, `cuda`, `cuda:1`, `mps`.
        threads: that compute on a CPU; None takes what torch takes.
    """

    model: str | None = None
    architecture: str | dict[str, Any] | None = None
    adapter: _Adapter | None = None
    quantization: QuantizationSpec | None = None
    tokenizer: _Tokenizer | None = None
    data: str | tuple[SourceSpec, ...]
    validation: float = Field(0.02, ge=0, lt=1)
    split_by: Literal["content", "file"] = "content"
    near_duplicates: float | None = Field(None, gt=0, le=1)
    supervise: Literal["all", "completion", "assistant", "last_assistant"] | None = None
    streaming: bool = False
    max_length: int = Field(1024, gt=1)
    over_long: Literal["truncate", "drop"] = "truncate"
    packing: Literal["best_fit", "contiguous", "none"] = "best_fit"
    micro_batch: int = Field(4, gt=0)
    accumulation: int = Field(1, gt=0)
    steps: int | None = Field(None, gt=0)
    epochs: float | None = Field(None, gt=0)
    precision: Literal["bfloat16", "float32", "float16"] = "bfloat16"
    objective: ObjectiveSpec = LanguageModelSpec()
    optimizer: OptimizerSpec = OptimizerSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    clip: float = Field(1.0, ge=0)
    parallel: ParallelSpec | None = None
    checkpointing: Literal["selective"] | Annotated[int, Field(ge=0)] = 0
    compile: bool = False
    neftune: float = Field(0.0, ge=0)
    evaluate_every: int = Field(100, ge=0)
    save_every: int = Field(200, ge=0)
    sample_every: int = Field(0, ge=0)
    prompts: tuple[str, ...] = ()
    sample_tokens: int = Field(64, gt=0)
    keep: Annotated[int, Field(gt=0)] = 2
    tensorboard: bool = False
    patience: int = Field(0, ge=0)
    answers: AnswersSpec | None = None
    pairs: PairsSpec | None = None
    compare: CompareSpec | None = None
    tasks: TasksSpec | None = None
    yardsticks: bool = False
    code: CodeSpec | None = None
    seed: int = 0
    device: str = "cpu"
    threads: int | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _decided(self) -> "Recipe":
        if (self.model is None) == (self.architecture is None):
            raise ValueError("give model (weights to start from) or architecture (random ones), one of the two")
        if self.architecture is not None and self.tokenizer is None:
            raise ValueError("random weights need a tokenizer: name one, or tokenizer: {vocab_size: N} trains one")
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give steps or epochs, one of the two")
        if self.sample_every and not self.prompts and not self.aligns:
            raise ValueError("sample_every needs prompts")
        if self.precision == "float16" and not self.device.startswith("cuda"):
            raise ValueError("precision float16 needs device cuda; on other devices take bfloat16")
        if self.compile and self.checkpointing == "selective":
            raise ValueError("compile decides by itself what it keeps; take checkpointing selective or compile")
        self._fit_the_objective()
        self._fit_the_adapter()
        self._fit_the_measures()
        if self.streaming:
            self._fit_a_stream()
        if self.parallel is not None:
            self._fit_the_layout(self.parallel)
        return self

    def _fit_the_objective(self) -> None:
        """What would do nothing is refused."""
        objective = self.objective
        defaults = {name: Recipe.model_fields[name].default for name in objective.meaningless}
        given = next((name for name, default in defaults.items() if getattr(self, name) != default), None)
        if given:
            raise ValueError(f"{given} means nothing to objective {objective.kind}")
        if isinstance(objective, ClassifierSpec) and self.packing == "contiguous":
            raise ValueError("packing contiguous cuts documents, and a classifier reads each at its end")
        if isinstance(objective, PreferenceSpec):
            self._fit_comparisons(objective)
        if isinstance(objective, PPOSpec | GRPOSpec):
            objective.require_fit(self.micro_batch * self.accumulation, self.max_length)
            if isinstance(self.adapter, LoRASpec) and self.adapter.lora_dropout:
                raise ValueError(
                    f"adapter.lora_dropout does nothing: objective {objective.kind} learns without dropout"
                )
        if isinstance(objective, Seq2SeqSpec) and self.over_long == "truncate":
            raise ValueError("a pair that is truncated teaches not to end: say over_long: drop")

    def _fit_comparisons(self, objective: PreferenceSpec) -> None:
        """What would compare wrongly, or would do nothing, is refused."""
        if self.packing == "contiguous":
            raise ValueError("packing contiguous cuts documents, and an answer is compared whole")
        if isinstance(objective, KTOSpec) and self.micro_batch == 1:
            raise ValueError("kto gives each prompt another's answer: micro_batch must be 2 or more")
        if isinstance(self.adapter, LoRASpec) and self.adapter.lora_dropout and not objective.dropout:
            raise ValueError("adapter.lora_dropout does nothing without objective.dropout: true")
        reference = getattr(objective, "reference", None)
        if reference == "adapter_off" and not isinstance(self.adapter, LoRASpec):
            raise ValueError("reference adapter_off is for a new adapter: take auto, copy or precomputed")

    @property
    def aligns(self) -> bool:
        """Whether what is trained is a policy, which can be compared with the model it began as."""
        return isinstance(self.objective, DPOSpec | ORPOSpec | KTOSpec | PPOSpec | GRPOSpec)

    def _fit_the_measures(self) -> None:
        """What cannot be measured is refused."""
        kind = self.objective.kind
        if self.compare is not None and not self.aligns:
            raise ValueError(f"compare means nothing to objective {kind}")
        rewarding = isinstance(self.objective, PairwiseRewardSpec)
        if self.tasks is not None and (rewarding or isinstance(self.objective, ClassifierSpec)):
            raise ValueError(f"tasks are for models that write, and objective {kind} trains none")
        if self.pairs is not None and not isinstance(self.objective, PreferenceSpec):
            raise ValueError(f"pairs means nothing to objective {kind}")
        if self.pairs is not None and rewarding and self.pairs.by != "mean":
            raise ValueError("pairs.by is of likelihoods, and a reward model has rewards")

    def _fit_the_adapter(self) -> None:
        """What only an adapter gives a meaning to is refused without one."""
        if self.adapter is None and self.quantization is not None:
            raise ValueError("quantization: weights of a few bits do not train; give an adapter that does")
        if self.quantization is not None and self.compile:
            raise ValueError("compile knows no weights of 4 bits: take compile or quantization")
        if self.adapter is None and self.optimizer.loraplus_lr_ratio != 1:
            raise ValueError("optimizer.loraplus_lr_ratio is of an adapter's matrices, and there is no adapter")
        if self.adapter is not None and self.model is None:
            raise ValueError("an adapter is worth nothing without the weights below it: name them as model")

    def _fit_the_layout(self, layout: ParallelSpec) -> None:
        """What many processes cannot share is refused."""
        objective: Any = self.objective
        asked = Training(
            objective.kind,
            self.optimizer.kind,
            adapted=self.adapter is not None,
            quantized=self.quantization is not None,
            stored=getattr(objective, "reference", None) == "precomputed",
            compiled=self.compile,
            noisy=self.neftune > 0,
            ptx=getattr(objective, "ptx", None) is not None,
        )
        try:
            require_shareable(asked, layout)
            require_whole_step(layout.pp, self.accumulation)
        except UserError as error:
            raise ValueError(f"parallel.{error}") from error

    def _fit_a_stream(self) -> None:
        """What needs all rows at once is refused."""
        if self.steps is None:
            raise ValueError("streaming knows no length, so that it needs steps in place of epochs")
        if not isinstance(self.data, str) and (len(self.data) > 1 or self.data[0].cap or self.data[0].weight):
            raise ValueError("streaming reads one source, without weight and cap")
        beside = {
            "a classifier": isinstance(self.objective, ClassifierSpec),
            "split_by file": self.split_by == "file",
            "near_duplicates": self.near_duplicates,
            "answers": self.answers,
            "yardsticks": self.yardsticks,
            "code": self.code,
        }
        given = next((name for name, value in beside.items() if value), None)
        if given:
            raise ValueError(f"{given} needs all rows at once, which streaming does not have")


def load_recipe(path: Path, changes: list[str]) -> Recipe:
    """A recipe file with `key=value` changes, keys dotted (`optimizer.learning_rate=1e-4`), values YAML.

    Raises:
        UserError: no such file, an unknown key (with the nearest), a value that does not fit.
    """
    data = load_yaml(path)
    if not isinstance(data, dict):
        raise UserError("not a mapping of keys to values", where=str(path))
    for change in changes:
        apply_change(data, change)
    recipe: Recipe = validate(Recipe, data, str(path))
    return recipe
