"""Whether two systems differ on the same items, by exact counting."""

import math

__all__ = ["sign_test"]


def sign_test(wins: int, losses: int) -> float:
    """How likely as uneven a score is among items of which each is won by a fair coin: two-sided, exact.

    Ties are left out. With items that only one of two systems has right as wins and losses, this is McNemar's test
    (1947) in its exact form.
    """
    count, fewer = wins + losses, min(wins, losses)
    if not count:
        return 1.0
    tail = sum(math.comb(count, k) for k in range(fewer + 1))
    return min(1.0, 2 * tail / 2**count)
