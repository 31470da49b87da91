"""Values stand where the next token is chosen, whether the critic is a model of its own or a matrix on the policy's."""

import torch

from intaglio.models.heads import SequenceClassifier, decoder_of, init_head
from intaglio.models.value import ActorCritic
from intaglio.parts.context import Packed
from tiny_rollouts import policy

LENGTHS = [3, 5]
IDS = torch.tensor([[5, 6, 7, 9, 8, 7, 6, 5]])
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])


def values(model: ActorCritic) -> torch.Tensor:
    hidden = model.decoder.hidden_states(IDS, POSITIONS, Packed(LENGTHS))[0]
    return model.values(hidden, IDS, POSITIONS, Packed(LENGTHS))


def scored(head: SequenceClassifier) -> torch.Tensor:
    """The head's score of every beginning of both texts."""
    texts = IDS[0].split(LENGTHS)
    return torch.stack([head(text[None, : end + 1])[0, 0] for text in texts for end in range(len(text))])


def test_a_critic_of_its_own_scores_every_beginning() -> None:
    critic = SequenceClassifier(policy(1), 1)
    init_head(critic, 0)
    model = ActorCritic(policy(), critic)
    torch.testing.assert_close(values(model), scored(critic), atol=1e-5, rtol=0)
    assert model.head() is critic
    assert decoder_of(model) is model.decoder


def test_a_matrix_on_the_policys_features_does_too() -> None:
    model = ActorCritic(policy(), seed=3)
    found = values(model)
    torch.testing.assert_close(found, scored(model.head()), atol=1e-5, rtol=0)
    found.sum().backward()
    assert model.decoder.embed_tokens.weight.grad is not None
    assert {name for name, _ in ActorCritic(policy()).named_parameters() if "value" in name} == {"value.weight"}


def test_values_are_fp32_whatever_the_policy_computes_in() -> None:
    model = ActorCritic(policy()).to(torch.bfloat16)
    assert values(model).dtype == torch.float32
