"""What a model costs, by arithmetic: the numbers that `show`, `lineage` and `diff` print."""

from dataclasses import dataclass

from intaglio.errors import UserError
from intaglio.specs import ModelSpec

__all__ = ["Costs", "costs", "usual_context"]


@dataclass(frozen=True)
class Costs:
    """See the methods of any spec of the same names; `kv_cache_bytes` is of one sequence as long as asked."""

    num_parameters: int
    num_active_parameters: int
    kv_bytes_per_token: int
    kv_cache_bytes: int
    flops_per_token: int


def costs(spec: ModelSpec, context: int, dtype: str) -> Costs:
    """The costs of `spec` for one sequence of `context` tokens, its cache in `dtype`.

    Raises:
        UserError: a context that the model cannot take (names both numbers), or an unknown dtype.
    """
    limit = spec.context_limit
    if context < 1 or (limit and context > limit):
        raise UserError(
            f"a context of {context} tokens, where the model takes 1 {f'to {limit}' if limit else 'or more'}",
            mend="choose another --context",
        )
    return Costs(
        num_parameters=spec.num_parameters(),
        num_active_parameters=spec.num_active_parameters(),
        kv_bytes_per_token=spec.kv_bytes_per_token(dtype),
        kv_cache_bytes=spec.kv_cache_bytes(context, dtype),
        flops_per_token=spec.flops_per_token(context),
    )


def usual_context(*specs: ModelSpec) -> int:
    """The context to compare models at where none is asked for: 2048 tokens, or what all of them can take."""
    return min(2048, *(spec.context_limit or 2048 for spec in specs))
