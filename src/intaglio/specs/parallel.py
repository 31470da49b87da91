"""How a training run is laid out over many processes, as data: what the planner plans and the engine runs. No torch.

The mesh has the dimensions pp, dp, cp and tp, in this order: neighbours in tp stand next to each other, on one machine
where that is possible. Experts are spread over ranks of dp (ep divides dp).

Legend: ranks are processes, one to a device.
"""

from typing import Literal

from pydantic import Field, model_validator

from intaglio.specs.base import Spec

__all__ = ["ParallelSpec", "PipelineSpec", "Schedule"]

Schedule = Literal[
    "gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble", "zbv_zero_bubble", "dual_pipe_v"
]

_TWO_CHUNKS = ("zbv_zero_bubble", "dual_pipe_v")
_ONE_CHUNK = ("gpipe", "1f1b")


class PipelineSpec(Spec):
    """Layers cut into stages, micro-batches sent through them one behind the other.

    Attributes:
        ranks: that hold stages.
        micro_batches: of an optimizer step; the recipe's `accumulation` where it is None.
        schedule: in which order a rank does its forwards and backwards.
        chunks: stages of a rank; None takes what the schedule is made for (1 or 2).
    """

    ranks: int = Field(1, gt=0)
    micro_batches: int | None = Field(None, gt=0)
    schedule: Schedule = "1f1b"
    chunks: int | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _chunked(self) -> "PipelineSpec":
        if self.chunks is not None and self.schedule in _ONE_CHUNK and self.chunks != 1:
            raise ValueError(f"schedule {self.schedule} gives each rank one chunk: leave chunks out")
        if self.chunks is not None and self.schedule in _TWO_CHUNKS and self.chunks != 2:
            raise ValueError(f"schedule {self.schedule} gives each rank two chunks: leave chunks out")
        if self.chunks == 1 and self.schedule not in _ONE_CHUNK:
            raise ValueError(f"schedule {self.schedule} is for several chunks a rank: take 1f1b, or chunks: 2")
        return self

    @property
    def chunks_a_rank(self) -> int:
        """Stages of a rank."""
        return self.chunks or (1 if self.schedule in _ONE_CHUNK else 2)

    @property
    def stages(self) -> int:
        """Of the whole model."""
        return self.ranks * self.chunks_a_rank


class ParallelSpec(Spec):
    """A layout.

    Attributes:
        dp: ranks with other data (replicas, or shards of one).
        zero: what these share out (Rajbhandari et al. 2020): 0 nothing (DDP), 1 optimizer states, 2 gradients too, 3
            parameters too; settings of FSDP2.
        hsdp: replicas of a sharded group: dp / hsdp ranks share one set of shards (zero 1 to 3); 1 for one group.
        tp: ranks that share every matrix (Shoeybi et al. 2019).
        sequence_parallel: what lies between the matrices is shared out too, along the sequence (Korthikanti et al.
            2022); of tp.
        loss_parallel: the vocabulary's logits stay where they were made; of tp.
        pp: the pipeline; `pp: 4` is short for 4 ranks under 1f1b.
        ep: ranks that the experts of a layer are spread over; they are ranks of dp.
        cp: ranks that share every sequence.
        cp_method: `ulysses` exchanges heads for positions (Jacobs et al. 2023), `all_gather` collects keys and values.
        offload: parameters, gradients and optimizer states wait in the host's memory (zero 2 and 3).
        background_saves: checkpoints are copied to the host's memory, and written while training goes on.
    """

    dp: int = Field(1, gt=0)
    zero: Literal[0, 1, 2, 3] = 0
    hsdp: int = Field(1, gt=0)
    tp: int = Field(1, gt=0)
    sequence_parallel: bool = True
    loss_parallel: bool = True
    pp: PipelineSpec = PipelineSpec()
    ep: int = Field(1, gt=0)
    cp: int = Field(1, gt=0)
    cp_method: Literal["ulysses", "all_gather"] = "ulysses"
    offload: bool = False
    background_saves: bool = False

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        if isinstance(value, dict) and isinstance(value.get("pp"), int):
            return {**value, "pp": {"ranks": value["pp"]}}
        return value

    @model_validator(mode="after")
    def _possible(self) -> "ParallelSpec":
        if self.dp % self.hsdp:
            raise ValueError(f"hsdp {self.hsdp} does not divide dp {self.dp}: it is the number of replicas among them")
        if self.hsdp > 1 and not self.zero:
            raise ValueError("hsdp replicates groups that share shards: zero 0 has none, take zero 1, 2 or 3")
        if self.dp % self.ep:
            raise ValueError(f"ep {self.ep} does not divide dp {self.dp}: experts are spread over ranks of dp")
        if self.ep > 1 and self.hsdp > 1:
            raise ValueError("experts are spread over all of dp, which hsdp cuts: leave hsdp or ep out")
        if self.pp.ranks > 1 and self.ep * self.cp > 1:
            raise ValueError("stages go together with dp and tp, not yet with ep or cp: take ep: 1 and cp: 1 with pp")
        if self.pp.ranks > 1 and self.zero >= 2:
            raise ValueError(
                f"zero {self.zero} gathers parameters or reduces gradients anew for each micro-batch of a pipeline: "
                "take zero 0 or 1 with pp"
            )
        if self.offload and self.zero < 2:
            raise ValueError("offload moves shards to the host: take zero 2 or 3")
        return self

    @property
    def world(self) -> int:
        """Ranks of all."""
        return self.dp * self.tp * self.pp.ranks * self.cp

    @property
    def shards(self) -> int:
        """Ranks that share one copy of the optimizer states: of dp and cp, without replicas; 1 for zero 0."""
        return self.dp * self.cp // self.hsdp if self.zero else 1
