"""openai-gpt: gpt2's layers with the norm outside; other names for the embeddings."""

from intaglio.checkpoints.maps.gpt2 import LAYERS, norms
from intaglio.checkpoints.weight_map import Rules

RULES: Rules = {
    "transformer.tokens_embed.weight": "embed_tokens.weight",
    "transformer.positions_embed.weight": "positions.weight",
    "lm_head.weight": "lm_head.weight",
    **LAYERS,
    **norms("outside"),
}
