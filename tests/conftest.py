"""What every test stands on: one thread, a cache folder of its own, real models fetched once and shared."""

import os
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

from shared_cache import shared_home

# torch takes its number of threads from here when it is first imported, in processes that tests start too;
# tests that need no torch do not pay for its import.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may depend on a hub
os.environ.setdefault("INTAGLIO_NATIVE", "off")  # no test starts a compiler unasked: see native_build.py

# A busy machine is no finding: examples have no deadline.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs a GPU where there is none; torch is imported only if something does."""
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if not needing:
        return
    import torch

    if not torch.cuda.is_available():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="torch finds no GPU"))


@pytest.fixture(scope="session")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache folder of tests that fetch nothing real; empty when the session starts."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, empty_home: Path) -> Path:
    """Sets `INTAGLIO_HOME` for the test, so that no test reads or fills the developer's own cache."""
    folder = shared_home() if request.node.get_closest_marker("real") else empty_home
    monkeypatch.setenv("INTAGLIO_HOME", str(folder))
    return folder


def pulled(name: str) -> Path:
    """The directory of a real model, fetched into the shared folder once, by one process at a time."""
    from intaglio.checkpoints.pull import pull

    folder = shared_home()
    folder.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch, FileLock(folder / ".tests.lock"):
        patch.setenv("INTAGLIO_HOME", str(folder))
        return pull(name)


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """SmolLM2-135M-Instruct, as a checkpoint directory: the one download that `make test` makes."""
    return pulled("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def gemma3_dir() -> Path:
    """Gemma 3 270M, as a checkpoint directory; for proofs only, so that `make test` stays small."""
    return pulled("gemma3-270m")


@pytest.fixture(scope="session")
def toy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `toy_llms.save_toy`."""
    from toy_llms import save_toy

    return save_toy(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture(scope="session")
def parrot_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `toy_llms.save_parrot`."""
    from toy_llms import save_parrot

    return save_parrot(tmp_path_factory.mktemp("models") / "parrot")
