"""Toy models that the tests of the engine share."""

from pathlib import Path

import pytest

from toy_llms import save_parrot, save_toy


@pytest.fixture(scope="session")
def toy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `save_toy`."""
    return save_toy(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture(scope="session")
def parrot_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `save_parrot`."""
    return save_parrot(tmp_path_factory.mktemp("models") / "parrot")
