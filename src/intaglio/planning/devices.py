"""Devices to plan for: memory, speeds, links and prices of known ones; this machine; and what a runtime takes beside
the tensors. No torch.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import Field

from intaglio.errors import UserError, nearest
from intaglio.specs.base import Spec, load_yaml, validate

__all__ = ["HERE", "Device", "Overhead", "devices", "find_device", "overhead"]

HERE = "here"
"""The name of this machine, as a device: its memory, which torch fills from the CPU."""

GIB = 1 << 30


class _Entry(Spec):
    """A line of the table; see `devices.yaml` for the units."""

    title: str = ""
    memory: float = Field(gt=0)
    bandwidth: float = Field(gt=0)
    bf16: float = Field(gt=0)
    fp8: float | None = Field(None, gt=0)
    fp32: float = Field(gt=0)
    link: float = Field(gt=0)
    network: float = Field(gt=0)
    per_host: int = Field(8, gt=0)
    price: float = Field(0.0, ge=0)


@dataclass(frozen=True)
class Device:
    """A device.

    Attributes:
        name: in the table.
        title: in full.
        memory: bytes.
        bandwidth: of its memory, bytes in a second.
        flops: in a second, of dense matrix products, by dtype (`bfloat16`, `float16`, `float32`, `float8`).
        link: bytes in a second to neighbours in a host, one way.
        network: the same between hosts, of one device's share.
        per_host: devices of a host.
        price: dollars an hour.
        cpu: whether it is a CPU.
    """

    name: str
    title: str
    memory: int
    bandwidth: float
    flops: Mapping[str, float]
    link: float
    network: float
    per_host: int
    price: float
    cpu: bool = False

    def peak(self, dtype: str) -> float:
        """FLOPs in a second of matrix products in a dtype.

        Raises:
            UserError: it has no such products; names those that it has.
        """
        if dtype not in self.flops:
            raise UserError(f"{self.name} has no products in {dtype!r}", mend=nearest(dtype, self.flops))
        return self.flops[dtype]


@dataclass(frozen=True)
class Overhead:
    """What a runtime takes of a device's memory beside the tensors, from and to.

    Attributes:
        parts: bytes, least and most, by what they are.
    """

    parts: Mapping[str, tuple[int, int]]

    @property
    def least(self) -> int:
        return sum(low for low, _ in self.parts.values())

    @property
    def most(self) -> int:
        return sum(high for _, high in self.parts.values())

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "least": self.least,
            "most": self.most,
            "parts": {name: list(pair) for name, pair in self.parts.items()},
        }


def overhead(device: Device, tensors: int, world: int) -> Overhead:
    """What the runtime takes.

    On a GPU: the context and the kernels' code; the workspaces of matrix products; NCCL's buffers, where ranks talk;
    and what the allocator holds beyond the tensors, since blocks of one size are not those of another. The figures are
    ranges that people report, not measured here; none of them is fitted to anything.

    Args:
        device: of the rank.
        tensors: bytes of these at the peak.
        world: ranks.
    """
    mib = 1 << 20
    if device.cpu:
        return Overhead({"Python, torch and its threads": (300 * mib, 700 * mib), "allocator": (0, tensors // 20)})
    parts = {"context and kernels": (300 * mib, 600 * mib), "product workspaces": (8 * mib, 64 * mib)}
    if world > 1:
        parts["NCCL"] = (200 * mib, 1500 * mib)
    return Overhead({**parts, "allocator": (tensors // 100, tensors // 12)})


@cache
def devices() -> Mapping[str, Device]:
    """The table, by name."""
    table = load_yaml(Path(str(files("intaglio.planning") / "devices.yaml")))
    return {name: _device(name, entry, "devices.yaml") for name, entry in table.items()}


def find_device(name: str, file: Path | None = None, price: float | None = None) -> Device:
    """A device by name; `here` is this machine.

    Args:
        name: in the table, whatever the case.
        file: a table of the user's own, whose lines come before the others; of a known device it may hold only what
            is to be changed.
        price: dollars an hour, in place of the table's.

    Raises:
        UserError: no such device (names the nearest), or a line that says nonsense.
    """
    known = dict(devices())
    if file is not None:
        known |= _of_file(file)
    key = name.lower().replace("_", "-")
    if key == HERE:
        found = this_machine()
    elif key in known:
        found = known[key]
    else:
        raise UserError(f"unknown device {name!r}", where="device", mend=nearest(key, [HERE, *known]))
    if price is None:
        return found
    if price < 0:
        raise UserError(f"a price of {price}", where="price", mend="0 or more")
    return Device(**{**vars(found), "price": price})


def this_machine() -> Device:
    """The machine that this runs on, as one device: its memory, and speeds of an ordinary CPU, which are not measured.

    A container's limit counts where there is one.
    """
    memory = _memory_here()
    flops = {"float32": 5e10 * (os.cpu_count() or 1), "bfloat16": 1e11 * (os.cpu_count() or 1)}
    return Device(HERE, "this machine", memory, 2e10, flops, 1e10, 1.25e9, 1, 0.0, cpu=True)


def _memory_here() -> int:
    meminfo, limit = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
    if not meminfo.is_file():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    total = int(fields["MemTotal"].split()[0]) * 1024
    allowed = limit.read_text().strip() if limit.is_file() else ""
    return min(total, int(allowed)) if allowed.isdigit() else total


def _of_file(file: Path) -> dict[str, Device]:
    table = load_yaml(file)
    if not isinstance(table, dict) or not all(isinstance(entry, dict) for entry in table.values()):
        raise UserError("not a table of devices by name", where=str(file), mend="one line each: NAME: {memory: ...}")
    plain = load_yaml(Path(str(files("intaglio.planning") / "devices.yaml")))
    return {
        str(n).lower(): _device(str(n).lower(), {**plain.get(str(n).lower(), {}), **e}, str(file))
        for n, e in table.items()
    }


def _device(name: str, data: Mapping[str, Any], where: str) -> Device:
    entry: _Entry = validate(_Entry, dict(data), f"{where}: {name}")
    flops = {"bfloat16": entry.bf16, "float16": entry.bf16, "float32": entry.fp32}
    if entry.fp8 is not None:
        flops["float8"] = entry.fp8
    return Device(
        name=name,
        title=entry.title or name,
        memory=round(entry.memory * GIB),
        bandwidth=entry.bandwidth * 1e9,
        flops={dtype: value * 1e12 for dtype, value in flops.items()},
        link=entry.link * 1e9,
        network=entry.network * 1e9,
        per_host=entry.per_host,
        price=entry.price,
    )
