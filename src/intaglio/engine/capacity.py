"""How many blocks of keys and values fit into memory."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from intaglio.engine.blocks import BlockPool
from intaglio.engine.interface import EngineConfig
from intaglio.engine.paged import block_bytes, windows_of
from intaglio.errors import UserError
from intaglio.specs import DecoderSpec

__all__ = ["free_memory", "pools_for"]

_CGROUP = "/sys/fs/cgroup/memory"  # what a container may take
_SHARE = 0.5  # of the free memory; the rest is for activations, and for others


def pools_for(
    spec: DecoderSpec, config: EngineConfig, max_model_len: int, dtype: torch.dtype, device: torch.device
) -> list[BlockPool]:
    """A pool for each group of layers: as many blocks as memory holds, but not more than all sequences could use.

    Raises:
        UserError: not a single block fits.
    """
    pools = [BlockPool(1, config.block_size, window) for window in windows_of(spec, max_model_len)]
    most = [config.max_sequences * pool.peak(max_model_len, config.max_tokens_per_step) for pool in pools]
    costs = block_bytes(spec, config.block_size, max_model_len, dtype)
    count = config.num_blocks or _largest(_budget(config, device), costs, most)
    return [BlockPool(min(count, m), config.block_size, pool.window) for pool, m in zip(pools, most, strict=True)]


def _largest(budget: int, costs: Sequence[int], most: Sequence[int]) -> int:
    """The largest number of blocks that every group can have, bounded by what it could use."""
    low, high = 0, max(most)
    while low < high:
        middle = (low + high + 1) // 2
        taken = sum(cost * min(middle, m) for cost, m in zip(costs, most, strict=True))
        low, high = (middle, high) if taken <= budget else (low, middle - 1)
    if not low:
        what = f"one block of keys and values takes {sum(costs):,} bytes, and there are {budget:,}"
        raise UserError(what, where="kv_memory_bytes", mend="give it more memory or take a smaller block_size")
    return low


def _budget(config: EngineConfig, device: torch.device) -> int:
    return int(_SHARE * free_memory(device)) if config.kv_memory_bytes is None else config.kv_memory_bytes


def free_memory(device: torch.device) -> int:
    """Bytes that could be taken now, on the device or, where that shares the machine's memory, in the machine."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo, limit, used = (Path(name) for name in ("/proc/meminfo", f"{_CGROUP}.max", f"{_CGROUP}.current"))
    if not meminfo.is_file():  # nothing tells: half of what there is
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    if limit.is_file() and (allowed := limit.read_text().strip()).isdigit():  # else it says "max"
        available = min(available, int(allowed) - int(used.read_text()))
    return max(available, 0)
