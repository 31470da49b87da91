"""A run: a recipe put together, stepped, watched, saved and, after a stop, gone on with.

RUN/
    recipe.yaml     as it was resolved
    log.jsonl       a line for every step, evaluation and sample
    curves.png      loss, learning rate, gradient norm
    reward-kl.png   of a policy that was aligned, see `reward_kl`
    model/          a complete model directory, usable at once; or, where an adapter was trained:
    adapter/        its PEFT directory, with tokenizer and template
    checkpoints/    everything a step depends on; the last few
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
import yaml

from intaglio.adapters.peft_files import save_adapter
from intaglio.checkpoints.load import DTYPES
from intaglio.checkpoints.save import save_tokenizer
from intaglio.errors import UserError
from intaglio.fetch import claimed
from intaglio.files import whole_directory, whole_file
from intaglio.lineage.units import short_count
from intaglio.models.heads import SequenceClassifier, decoder_of
from intaglio.models.value import ActorCritic
from intaglio.specs import load_yaml, validate
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.adapting import adapt
from intaglio.training.batching.data import read_data
from intaglio.training.board import Board, require_tensorboard
from intaglio.training.fitness import misfits
from intaglio.training.log import Log, draw_log, measured_peak, read_log
from intaglio.training.loop import Loop, Step, evaluate
from intaglio.training.measuring.measures import Measures
from intaglio.training.measuring.side_by_side import SideBySide
from intaglio.training.measuring.task_exam import TaskExam
from intaglio.training.memory.shortage import explaining_shortage
from intaglio.training.processes.ranks import Ranks, join
from intaglio.training.processes.turns import in_turns
from intaglio.training.recipe import Recipe
from intaglio.training.rl.reward_kl import draw_reward_kl
from intaglio.training.rollout import continue_prompts
from intaglio.training.start import build_spec, build_tokenizer
from intaglio.training.state import last_checkpoint, load_objective, load_state, load_stream, prune, save_state
from intaglio.training.stepping.compiling import compile_parts, require_compiler
from intaglio.training.stepping.flops import step_flops
from intaglio.training.stepping.optimizer import build_optimizers
from intaglio.training.stepping.scaler import LossScaler
from intaglio.training.stepping.tricks import recompute_activations, without_dropout
from intaglio.training.tasks import task_of

__all__ = ["Outcome", "finish", "resume", "train", "unheard"]

Say = Callable[[str], None]

_LOCK: Final = ".lock"

_PLACE: Final = ("parallel", "micro_batch", "accumulation", "checkpointing", "device", "threads")
"""What of a recipe says where a run runs, and not what comes of it."""

_ROOM: Final = ("chunk", "at_once")
"""The same of an objective."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        run: its folder.
        result: what it has made: RUN/model, or RUN/adapter.
        steps: done in all.
        stopped: the signal that ended it early, or None.
        loss: of the last step, nats per target.
        eval_loss: of the last evaluation.
    """

    run: Path
    result: Path
    steps: int
    stopped: int | None
    loss: float | None
    eval_loss: float | None


def train(recipe: Recipe, run: Path, *, say: Say = print, quiet: bool = False) -> Outcome:
    """Trains from the beginning into a new folder.

    Raises:
        UserError: the folder holds a run already; or what the recipe names is missing or does not fit.
    """
    ranks = join(recipe.parallel, recipe.device)
    if not ranks.first:
        return _Run(recipe, run, unheard, True, ranks).go()
    _require_new(run)
    ready = _Run(recipe, run, say, quiet, ranks)
    with claimed(run / _LOCK):
        _require_new(run)  # another process may have had time for a whole one
        with whole_directory(run / "tokenizer") as beside:
            save_tokenizer(ready.tokenizer, beside)
        with whole_file(run / "recipe.yaml") as beside:  # last: from here on it is a run
            beside.write_text(yaml.safe_dump(recipe.plain(), sort_keys=False, allow_unicode=True), encoding="utf-8")
        return ready.go()


def _require_new(run: Path) -> None:
    if (run / "recipe.yaml").exists():
        raise UserError("holds a run already", where=str(run), mend=f"go on with it: intaglio train --resume {run}")


def resume(run: Path, *, say: Say = print, quiet: bool = False, recipe: Recipe | None = None) -> Outcome:
    """Goes on with a run from its last checkpoint, as if it had never stopped; from the start if it saved none.

    Args:
        run: its folder.
        say: is told what happens.
        quiet: no bar.
        recipe: how it is to go on, if it is to run on other machines than before; None as it began.

    Raises:
        UserError: no run there, another process is at work on it, or its checkpoint or data are not what they were; or
            `recipe` asks for another run.
    """
    begun: Recipe = validate(Recipe, load_yaml(run / "recipe.yaml"), str(run / "recipe.yaml"))
    if recipe is None:
        recipe = begun
    elif _run_as(recipe, begun) != begun:
        what = f"the run there has another recipe; only {', '.join(_PLACE)} may change, and what else only saves memory"
        raise UserError(what, where=str(run), mend="take another out=DIR")
    ranks = join(recipe.parallel, recipe.device)
    if not ranks.first:
        return _Run(recipe, run, unheard, True, ranks).go()
    with claimed(run / _LOCK):
        return _Run(recipe, run, say, quiet, ranks).go()


def _run_as(recipe: Recipe, begun: Recipe) -> Recipe:
    """A recipe as it would be if it ran where another does."""
    same: dict[str, Any] = {name: getattr(begun, name) for name in _PLACE}
    if type(recipe.objective) is type(begun.objective):
        room = {name: getattr(begun.objective, name) for name in _ROOM if hasattr(begun.objective, name)}
        same["objective"] = recipe.objective.model_copy(update=room)
    if {recipe.optimizer.kind, begun.optimizer.kind} == {"adamw", "paged_adamw"}:
        same["optimizer"] = recipe.optimizer.model_copy(update={"kind": begun.optimizer.kind})
    return recipe.model_copy(update=same)


def finish(recipe: Recipe, run: Path, *, say: Say = print, quiet: bool = False) -> Outcome:
    """Trains into the folder `run`, or goes on with what was begun there.

    Raises:
        KeyboardInterrupt: a signal ended it; what it did is saved.
        UserError: see `train` and `resume`.
    """
    begun = (run / "recipe.yaml").exists()
    outcome = resume(run, say=say, quiet=quiet) if begun else train(recipe, run, say=say, quiet=quiet)
    if outcome.stopped is not None:
        raise KeyboardInterrupt
    return outcome


def unheard(line: str) -> None:
    """For what nobody is to be told: what all ranks but the first say, and runs inside of others."""


class _Run:
    """The pieces of one run, and the hooks between its steps."""

    loop: Loop

    def __init__(self, recipe: Recipe, run: Path, say: Say, quiet: bool, ranks: Ranks) -> None:
        self.recipe, self.run, self.say, self.quiet, self.ranks = recipe, run, say, quiet, ranks
        if recipe.threads:
            torch.set_num_threads(recipe.threads)
        _require(recipe)
        torch.manual_seed(recipe.seed)
        self.tokenizer = self._tokenizer()
        with ranks.in_turn():
            self.data = read_data(recipe, self.tokenizer, say)
        with self._explaining():
            self._build()

    def _build(self) -> None:
        """What takes memory."""
        recipe, ranks = self.recipe, self.ranks
        self.task = task_of(recipe, self.data, self.say, ranks)
        self.stream = in_turns(self.task.stream(), ranks)
        self.model: Any = self.task.model(self.tokenizer)
        adapt(self.model, recipe)
        if not getattr(recipe.objective, "dropout", True):
            without_dropout(self.model)
        self.num_trained = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        self.together = ranks.saves()
        self.outline = None if self.together is None or recipe.adapter else _outline(self.model)
        dtype = DTYPES["float32" if recipe.adapter else recipe.precision]
        self.masters, self.objective = ranks.lay_out(self.model, dtype, self.task.objective)
        self.optimizers = build_optimizers(recipe.optimizer, self.masters.masters)
        self.steps = recipe.steps or self._steps_of(recipe.epochs or 1.0)
        self.held_out = self.task.held_out()
        self.measures = Measures(recipe, self.run, self.data.validation, self.tokenizer, self.say)
        self.exam = TaskExam(recipe.tasks, recipe.seed, self.tokenizer, self.say) if recipe.tasks else None
        self.side_by_side = self._side_by_side() if recipe.compare or (recipe.aligns and recipe.sample_every) else None
        size = self.model.spec.vocab_size
        self.token_bytes = torch.tensor([len(self.tokenizer.token_bytes(i)) for i in range(size)])
        self.loop = Loop(
            self.model,
            self.masters,
            self.objective,
            self.stream,
            self.optimizers,
            recipe.schedule,
            steps=self.steps,
            accumulation=recipe.accumulation,
            clip=recipe.clip,
            scaler=LossScaler() if recipe.precision == "float16" else None,
            ranks=ranks,
        )
        self.result = self.run / ("adapter" if recipe.adapter else "model")
        self.last_loss: float | None = None
        self.eval_loss: float | None = None
        self.best, self.worse = float("inf"), 0
        if recipe.compile:
            compile_parts(decoder_of(self.model))
        if recipe.checkpointing:
            recompute_activations(decoder_of(self.model), recipe.checkpointing)

    def go(self) -> Outcome:
        """Steps to the end or to a signal; saves either way."""
        with self._explaining():
            return self._go()

    def _explaining(self) -> AbstractContextManager[None]:
        """See `explaining_shortage`."""
        spec = partial(build_spec, self.recipe, self.tokenizer)
        return explaining_shortage(self.recipe, self.run, spec, lambda: self.loop.done if "loop" in vars(self) else 0)

    def _go(self) -> Outcome:
        self._pick_up()
        self._introduce()
        if self._ended():
            self.say(f"this run has ended at step {self.loop.done}, and does not step on")
            stopped = None
        else:
            if not self.loop.done and self.recipe.model:  # random weights have nothing to say
                self._measure(self.measures.before)
            with _signals() as received, self._log() as self.log:
                if self.exam is not None and not self.loop.done:
                    self._measure(partial(self._examine, 0))
                self._step_on(received)
            self._save()
            stopped = received[0] if received else None
        if self.together is not None:
            self.together.wait()
        self._draw()
        if stopped is None:
            self._measure(self.measures.after)
            if self.side_by_side is not None:
                self._measure(self._compare)
        return Outcome(self.run, self.result, self.loop.done, stopped, self.last_loss, self.eval_loss)

    def _side_by_side(self) -> SideBySide:
        held_out = self.data.validation
        return SideBySide(self.recipe, self.tokenizer, [held_out[i].where for i in range(len(held_out))])

    def _measure(self, measure: Callable[[Any, Any], None]) -> None:
        """Shows what writes text and the whole model to a measure, on the first rank."""
        with self.ranks.whole(self.model) as model:
            if self.ranks.first:
                measure(_speaker(model), model)

    def _compare(self, speaker: Any, model: Any) -> None:
        assert self.side_by_side is not None
        if prompts := len(self.side_by_side.prompts):
            self.say(f"answering {prompts} held-out prompts, and so does the model that this began with")
        self.measures.compared(self.side_by_side.report(self.loop.done, speaker))

    def _ended(self) -> bool:
        """All steps done, or no better loss for as long as the recipe waits for one."""
        patience = self.recipe.patience
        return self.loop.done >= self.steps or bool(patience and self.worse >= patience)

    def _draw(self) -> None:
        """The curves; a run is not lost for want of a picture of it."""
        if not self.ranks.first:
            return
        try:
            draw_log(self.run / "log.jsonl", self.run / "curves.png")
            if self.recipe.aligns:
                draw_reward_kl(read_log(self.run / "log.jsonl"), self.run / "reward-kl.png")
        except UserError as error:
            self.say(str(error))

    def _step_on(self, received: list[int]) -> None:
        """Runs the loop; a loss that is not finite also tells what is safe."""
        try:
            self.loop.run(lambda step: self._after(step, received))
        except UserError as error:
            kept = last_checkpoint(self.run)
            safe = f"the last good checkpoint is {kept}" if kept else "there is no checkpoint yet"
            raise UserError(error.what, where=error.where, mend=f"{error.mend}; {safe}") from error

    def _tokenizer(self) -> Tokenizer:
        """A run that is gone on with has the one it began with."""
        begun = (self.run / "recipe.yaml").exists()
        return Tokenizer.from_directory(self.run / "tokenizer") if begun else build_tokenizer(self.recipe)

    def _steps_of(self, epochs: float) -> int:
        rows_a_step = self.recipe.micro_batch * self.recipe.accumulation * self.ranks.count
        return max(1, round(epochs * self.stream.num_rows / rows_a_step))

    def _log(self) -> Log:
        frozen = self.recipe.adapter is not None
        layers, head = step_flops(self.model.spec, max(2, self.stream.mean_document), frozen)
        peak = measured_peak(DTYPES[self.recipe.precision], self.recipe.device)
        told = self.recipe.tensorboard and self.ranks.first
        board = Board(self.run / "tensorboard", self.loop.done) if told else None
        file, done = self.run / "log.jsonl" if self.ranks.first else Path(os.devnull), self.loop.done
        return Log(file, self.steps, layers, head, peak, done=done, quiet=self.quiet, board=board)

    def _introduce(self) -> None:
        counts, trained = self.data.counts, f"{short_count(self.num_trained)} parameters"
        if self.recipe.adapter:
            trained += f" beside {short_count(self.model.spec.num_parameters())} that stay as they are"
        self.say(
            f"{trained}; {counts.kept} of {counts.read} rows "
            f"({counts.truncated} truncated, {counts.dropped_long} too long, {counts.dropped_empty} without a target), "
            f"{len(self.data.validation)} held out, {self.data.removed} of those removed as known"
        )
        if counts.border_moved:
            self.say(f"{counts.border_moved} prompts end earlier than a model is asked (see docs/preferences.md)")
        window = " of the first window" if self.recipe.streaming else ""
        rows = f"{self.stream.num_rows} rows{window}"
        self.say(f"packing fills {self.stream.efficiency:.1%} of {rows}; {self.steps} steps")
        for warning in () if self.loop.done else misfits(self.recipe, self.tokenizer):
            self.say(f"warning: {warning}")

    def _pick_up(self) -> None:
        """Goes to where the last checkpoint stands, and takes back what the log said after it."""
        path = last_checkpoint(self.run)
        if path is None:
            if self.ranks.first:
                (self.run / "log.jsonl").unlink(missing_ok=True)
            return
        state = load_state(path, self.masters, self.optimizers)
        load_objective(path, self.objective)
        self.stream.load_state(state["cursor"])
        load_stream(path, self.stream)
        self.loop.done, self.loop.tokens_seen = state["step"], state["tokens_seen"]
        self.best, self.worse = state["best"] or float("inf"), state["worse"]
        if self.loop.scaler:
            self.loop.scaler.load_state(state["scaler"])
        if self.ranks.first:
            self._cut_log(state["step"])
        self.say(f"resumed at step {state['step']}")

    def _cut_log(self, step: int) -> None:
        lines = read_log(self.run / "log.jsonl", until=step)
        with whole_file(self.run / "log.jsonl") as beside, Log(beside, self.steps, 1, 1, 1, quiet=True) as log:
            for line in lines:
                log.line(**line)

    def _after(self, step: Step, received: list[int]) -> bool:
        """Between two steps: log, evaluate, sample, save; False ends the run."""
        self.last_loss = step.loss
        self.log.step(step)
        go_on = not self._due(self.recipe.evaluate_every, step) or self._evaluate(step)
        if self.exam is not None and self._due(self.exam.spec.every or self.steps, step):
            self._measure(partial(self._examine, step.number))
        if self._due(self.recipe.sample_every, step):
            self._measure(partial(self._sample, step))
        if self._due(self.recipe.save_every, step) and step.number < self.steps:
            self._save()
        if step.skipped:
            self.log.say(f"step {step.number}: skipped, a gradient overflowed at a loss scale of {step.loss_scale:g}")
        return not self.ranks.heard(received) and go_on

    def _due(self, every: int, step: Step) -> bool:
        return bool(every) and (step.number % every == 0 or step.number == self.steps)

    def _evaluate(self, step: Step) -> bool:
        """Held-out loss; False once it has not improved for `patience` evaluations."""
        if not self.held_out:
            return True
        token_bytes = self.token_bytes if self.task.predicts_text else None
        found = evaluate(self.model, self.objective, self.held_out, token_bytes, self.ranks)
        self.eval_loss = found.loss
        self.log.line(step=step.number, **found.lines())
        bits = f", {found.bits_per_byte:.3f} bits a byte" if found.bits_per_byte else ""
        right = "" if found.accuracy is None else f", {found.accuracy:.1%} right"
        self.log.say(f"step {step.number}: held-out loss {found.loss:.4f}{right}{bits}")
        better = self.eval_loss < self.best
        self.best, self.worse = min(self.best, self.eval_loss), 0 if better else self.worse + 1
        if better and self.recipe.patience:
            self._write(self.run / "best")
        return not self.recipe.patience or self.worse < self.recipe.patience

    def _examine(self, step: int, speaker: Any, model: Any) -> None:
        assert self.exam is not None
        found = self.exam.lines(self.exam.take(speaker))
        self.log.line(step=step, **found)
        means = {key: value for key, value in found.items() if not key.endswith(("_low", "_high"))}
        self.log.say(f"step {step}: " + ", ".join(f"{key[5:]} {value:.3f}" for key, value in means.items()))

    def _sample(self, step: Step, speaker: Any, model: Any) -> None:
        if self.side_by_side is not None:
            self.side_by_side.tell(step.number, speaker, self.log)
            return
        prompts, recipe = self.recipe.prompts, self.recipe
        texts = continue_prompts(speaker, self.tokenizer, prompts, recipe.sample_tokens, recipe.seed)
        for prompt, text in zip(self.recipe.prompts, texts, strict=True):
            self.log.line(step=step.number, prompt=prompt, sample=text)
            self.log.say(f"step {step.number}: {prompt}|{text}")

    def _save(self) -> None:
        state: dict[str, Any] = {
            "tokens_seen": self.loop.tokens_seen,
            "cursor": self.stream.state(),
            "best": self.best if self.best < float("inf") else None,
            "worse": self.worse,
            "scaler": self.loop.scaler.state() if self.loop.scaler else None,
            "recipe": self.recipe.plain(),
        }
        kept = (self.masters, self.optimizers, state, self.objective, self.stream)
        save_state(self.run, self.loop.done, *kept, together=self.together, then=self._saved)
        if self.outline is None:
            self._write(self.result)

    def _saved(self, checkpoint: Path) -> None:
        """On the first rank, when a checkpoint stands; many ranks' model is written from its files, never whole."""
        prune(self.run, self.recipe.keep)
        if self.outline is not None:
            from intaglio.parallel.export import on_disk

            model = on_disk(self.outline, checkpoint, DTYPES[self.recipe.precision])
            self.task.save(model, self.result, self.tokenizer)

    def _write(self, path: Path) -> None:
        """What others open: the whole model, or the adapter alone."""
        self._measure(partial(self._write_whole, path))

    def _write_whole(self, path: Path, speaker: Any, model: Any) -> None:
        if self.recipe.adapter:
            adapted = model.decoder if isinstance(model, ActorCritic) else model
            save_adapter(adapted, path, base=self.recipe.model, tokenizer=self.tokenizer)
        else:
            self.task.save(model, path, self.tokenizer)


def _outline(model: Any) -> Any:
    """The modules of a model that is about to be shared out, without its numbers."""
    from intaglio.parallel.export import without_numbers

    return without_numbers(model)


def _speaker(model: Any) -> Any:
    """What writes text: a model, or the one under its head."""
    return model.decoder if isinstance(model, SequenceClassifier | ActorCritic) else model


def _require(recipe: Recipe) -> None:
    """What a recipe asks of the machine, before anything is read."""
    if recipe.device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("torch finds no CUDA device", where="device", mend="take cpu")
    if recipe.tensorboard:
        require_tensorboard()
    if recipe.compile:
        require_compiler(recipe.device)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects Ctrl-C and SIGTERM, so that the step at hand is finished and saved; a second one ends at once."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
