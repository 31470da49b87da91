"""Ranks of one attempt find each other, whatever a dead attempt left in the store."""

import os
from datetime import timedelta
from time import sleep

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from intaglio.errors import UserError
from intaglio.parallel.meeting import meet
from ranks import run_ranks

PATIENCE = timedelta(seconds=60)


def attempt(port: int) -> float:
    """As torchrun would start it: its own store is all attempts'."""
    os.environ.update(MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
    store, rank, world = meet(PATIENCE)
    sleep(rank)  # the first rank is early, and would find the others' addresses of the attempt before
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=PATIENCE)
    came = torch.ones(())
    dist.all_reduce(came)
    return float(came)


def lonely(port: int) -> str:
    """The only rank of two that came."""
    os.environ.update(MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True", WORLD_SIZE="2")
    try:
        meet(timedelta(seconds=1))
    except UserError as error:
        return str(error)
    return "met"


def test_every_attempt_meets_in_a_place_of_its_own() -> None:
    kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for _ in range(2):
        assert run_ranks(2, attempt, kept.port, join=False) == [2.0, 2.0]


def test_who_does_not_come_is_named() -> None:
    kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    kept.set("asks/1", "a question of somebody who is dead")
    assert run_ranks(1, lonely, kept.port, join=False) == ["torchrun: ranks 1 did not come"]
