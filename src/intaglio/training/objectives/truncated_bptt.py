"""Next-token cross-entropy of a recurrent model whose state goes on from step to step, and whose gradients do not.

Backpropagation through time, truncated at the border of a step (Werbos 1990; Williams and Peng 1990). What is carried
is kept here, so that the loop knows nothing of it; a checkpoint holds it, so that a resumed run goes on bit for bit.

Legend: N tokens of the batch, n of them with a target, D documents, E features.
"""

from torch import Tensor, nn

from intaglio.models.recurrent import RecurrentModel
from intaglio.parts.recurrent import State
from intaglio.training.batching.batches import Batch
from intaglio.training.batching.lanes import LaneBatch
from intaglio.training.objectives.chunked_loss import chunked_cross_entropy
from intaglio.training.objectives.language_model import accuracy, at_targets
from intaglio.training.objectives.objective import Loss
from intaglio.training.objectives.rows import as_rows, real_places

__all__ = ["TruncatedBPTT"]


class TruncatedBPTT:
    """-log p(next token) over lanes of text (see `lanes`).

    Args:
        chunk: see `LanguageModel`.
    """

    def __init__(self, chunk: int = 1024) -> None:
        self.chunk = chunk
        self._left: dict[bool, State] = {}  # by the lanes, of training and of a measurement apart

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        """See `Objective`; batches must come in the order of their stream."""
        assert isinstance(model, RecurrentModel)
        assert isinstance(batch, LaneBatch)
        ids, lengths = as_rows(batch.ids[0], batch.documents)
        rows, left = model.hidden_states(ids, self._entered(model, batch), lengths)
        self._left[model.training] = tuple(part[:, batch.lasts].detach() for part in left)
        hidden, labels = at_targets(real_places(rows, lengths), batch)
        metrics = {} if model.training else {"accuracy": accuracy(model, hidden, labels, self.chunk)}
        return Loss(chunked_cross_entropy(hidden, model.lm_head.weight, labels, chunk=self.chunk), metrics=metrics)

    def state(self) -> dict[str, Tensor]:
        """See `Stateful`; what a measurement left is of no use to the next."""
        return {str(number): part.contiguous() for number, part in enumerate(self._left.get(True, ()))}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """See `Stateful`."""
        self._left = {True: tuple(state[name] for name in sorted(state))} if state else {}

    def _entered(self, model: RecurrentModel, batch: LaneBatch) -> State:
        """What each document begins with: zeros, or what its lane was left in."""
        weight = model.embed_tokens.weight
        begins = model.recurrent.initial(weight.new_empty(len(batch.documents), 0))
        lanes = batch.goes_on.nonzero()[:, 0]
        for begin, left in zip(begins, self._left.get(model.training, ()), strict=False):
            begin[:, batch.firsts[lanes]] = left[:, lanes].to(begin)
        return begins
