"""What ranks send each other, and how long that takes. No torch.

Ranks of the mesh (pp, dp, cp, tp) are numbered with tp fastest, and hosts hold as many of them as they have devices. A
ring over n ranks passes (n - 1) / n of what is gathered or scattered through every link; an all-reduce is both. Between
hosts the ranks of one host each send a share over their own part of the network, so that a group with g ranks a host
has g of these together (and no more than the links in the host carry).
"""

from dataclasses import dataclass

from intaglio.planning.devices import Device
from intaglio.planning.speeds import Assumptions
from intaglio.specs.parallel import ParallelSpec

__all__ = ["Group", "Wires"]


@dataclass(frozen=True)
class Group:
    """Ranks that talk with each other.

    Attributes:
        size: how many.
        stride: from one to the next in the numbering of all.
    """

    size: int
    stride: int

    def in_host(self, per_host: int) -> int:
        """How many of them stand in one host."""
        return max(1, min(self.size, per_host // self.stride))


@dataclass(frozen=True)
class Wires:
    """A layout's groups on a device, and the seconds of what they do.

    Attributes:
        layout: of the ranks.
        device: they are.
        assumed: of links.
    """

    layout: ParallelSpec
    device: Device
    assumed: Assumptions

    @property
    def tensor(self) -> Group:
        return Group(self.layout.tp, 1)

    @property
    def context(self) -> Group:
        return Group(self.layout.cp, self.layout.tp)

    @property
    def experts(self) -> Group:
        """Neighbours among the ranks of dp."""
        return Group(self.layout.ep, self.layout.tp * self.layout.cp)

    @property
    def shards(self) -> Group:
        """That share one set of shards; all of dp and cp where nothing is shared (zero 0)."""
        return Group(self.layout.dp * self.layout.cp // self.layout.hsdp, self.layout.tp)

    @property
    def expert_shards(self) -> Group:
        """That have the same experts, of those."""
        return Group(max(self.shards.size // self.layout.ep, 1), self.layout.tp * self.layout.ep)

    @property
    def replicas(self) -> Group:
        """That have the same shards (HSDP)."""
        return Group(self.layout.hsdp, self.layout.tp * self.shards.size)

    def gather(self, group: Group, num_bytes: float, pieces: int = 1) -> float:
        """All-gather, or reduce-scatter, of `num_bytes` in all, in so many collectives."""
        if group.size == 1 or not num_bytes:
            return 0.0
        moved = num_bytes * (group.size - 1) / group.size
        return moved / self._speed(group) + pieces * self._latency(group)

    def reduce(self, group: Group, num_bytes: float, pieces: int = 1) -> float:
        """All-reduce."""
        return 2 * self.gather(group, num_bytes, pieces)

    def exchange(self, group: Group, num_bytes: float, pieces: int = 1) -> float:
        """All-to-all of what each rank has (`num_bytes`): what leaves the host does so over the rank's own share of the
        network."""
        if group.size == 1 or not num_bytes:
            return 0.0
        here = group.in_host(self.device.per_host)
        near = num_bytes * (here - 1) / group.size / (self.device.link * self.assumed.link)
        far = num_bytes * (group.size - here) / group.size
        away = far / (self.device.network * self.assumed.network) if far else 0.0
        return max(near, away) + pieces * self._latency(group)

    def send(self, num_bytes: float) -> float:
        """From a rank of the pipeline to the next."""
        layout = self.layout
        far = layout.dp * layout.cp * layout.tp >= self.device.per_host
        speed = self.device.network * self.assumed.network if far else self.device.link * self.assumed.link
        return num_bytes / speed + (self.assumed.far_latency if far else self.assumed.latency)

    def _crosses(self, group: Group) -> bool:
        return group.size * group.stride > self.device.per_host

    def _speed(self, group: Group) -> float:
        """Bytes a second that pass through each rank of a ring."""
        near = self.device.link * self.assumed.link
        if not self._crosses(group):
            return near
        return min(near, self.device.network * self.assumed.network * group.in_host(self.device.per_host))

    def _latency(self, group: Group) -> float:
        return self.assumed.far_latency if self._crosses(group) else self.assumed.latency
