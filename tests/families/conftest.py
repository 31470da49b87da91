"""Tiny models shared by the tests of the families: built once in a session, on disk and in memory."""

import pytest
import torch
from transformers.utils import logging

from zoo import ZOO, Pair, PairOf, build

logging.set_verbosity_error()
logging.disable_progress_bar()


@pytest.fixture(scope="session")
def pair_of(tmp_path_factory: pytest.TempPathFactory) -> PairOf:
    """The pair of a name in the zoo."""
    pairs: dict[str, Pair] = {}
    folder = tmp_path_factory.mktemp("zoo")
    torch.set_num_threads(1)

    def get(name: str) -> Pair:
        if name not in pairs:
            theirs = build(ZOO[name])
            theirs.save_pretrained(folder / name)
            pairs[name] = Pair(ZOO[name], theirs, folder / name)
        return pairs[name]

    return get
