"""A policy and what it expects: a decoder, and a value for each of its tokens (the critic of PPO).

The value of a place is what is still to come from there on: it stands where the next token is chosen, before that is
known. The critic is a whole model of its own, as TRL's and InstructGPT's, or one matrix on the policy's own features.

Legend: N tokens of a packed row, E features.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier
from intaglio.parts.context import AttentionContext
from intaglio.specs import DecoderSpec

__all__ = ["ActorCritic"]

_STD = 0.02


class ActorCritic(nn.Module):
    """A decoder with values beside it.

    Args:
        decoder: the policy; taken over, not copied.
        critic: a model of its own with one score, such as a reward model; None for a matrix on the policy's features,
            which starts from N(0, 0.02).
        seed: of that matrix.
    """

    def __init__(self, decoder: Decoder, critic: SequenceClassifier | None = None, seed: int = 0) -> None:
        super().__init__()
        assert critic is None or critic.num_labels == 1, "a value is one number"
        self.decoder, self.critic = decoder, critic
        like = decoder.embed_tokens.weight
        self.value: nn.Linear | None = None
        if critic is None:
            self.value = nn.Linear(decoder.spec.hidden_size, 1, bias=False)
            nn.init.normal_(self.value.weight, 0.0, _STD, generator=torch.Generator().manual_seed(seed))
            self.value.to(like.device)

    @property
    def spec(self) -> DecoderSpec:
        """The policy's."""
        return self.decoder.spec

    def values(self, hidden: Tensor, ids: Tensor, positions: Tensor, context: AttentionContext) -> Tensor:
        """The value at every place, in fp32.

        Args:
            hidden: (N, E), what the policy's last layer made of the same tokens.
            ids, positions: (1, N).
            context: for a critic of its own, a new one.

        Returns:
            (N,)
        """
        if self.critic is not None:
            hidden = self.critic.decoder.hidden_states(ids, positions, context)[0]
        weight = (self.critic.score if self.value is None else self.value).weight  # type: ignore[union-attr]
        wide = torch.promote_types(hidden.dtype, torch.float32)
        return F.linear(hidden.to(wide), weight.to(wide))[:, 0]

    def head(self) -> SequenceClassifier:
        """The critic as a model with one score, for a directory: its own, or the policy with the matrix."""
        if self.critic is not None:
            return self.critic
        assert self.value is not None
        made = SequenceClassifier(self.decoder, 1)
        made.score.weight = nn.Parameter(self.value.weight.detach().to(made.score.weight.dtype))
        return made
