"""Runs of a second: what would take longer than they do is left out."""

from collections.abc import Iterator

import pytest

from running import unmeasured


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """See `running.unmeasured`; a file that looks at pictures has its own."""
    with pytest.MonkeyPatch.context() as patch:
        unmeasured(patch)
        yield
