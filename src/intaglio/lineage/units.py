"""Numbers as people write them: 117M, 72.0 KiB, 249.9 GFLOP."""

import math

__all__ = ["parse_count", "short_bytes", "short_count", "short_flops"]

BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
COUNTS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def parse_count(text: str) -> int:
    """`117M` -> 117000000."""
    return round(float(text[:-1]) * COUNTS[text[-1]])


def short_count(number: int) -> str:
    """116534784 -> `116.5M`. Billions begin at two: 1.6B would say less than 1557.6M."""
    unit = next((unit for unit in "TB" if number >= 2 * COUNTS[unit]), "M" if number >= 10**6 else "K")
    return f"{number / COUNTS[unit]:.1f}{unit}"


def short_flops(number: int) -> str:
    """247000000 -> `0.2G`, with the unit below where a tenth would be too coarse."""
    for unit, size in (("T", 10**12), ("G", 10**9)):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number / 10**6:.1f}M"


def short_bytes(number: int) -> str:
    """73728 -> `72.0 KiB`."""
    power = min(int(math.log2(number)) // 10, len(BYTES) - 1) if number else 0
    return f"{number / 1024**power:.1f} {BYTES[power]}"
