"""Notes and refusals of the readers, as the command line writes them."""

from collections.abc import Iterator
from functools import partial

import pytest

from socialx.cli.error_flags import write
from socialx.core.errors import spelling


@pytest.fixture(autouse=True)
def as_typed() -> Iterator[None]:
    with spelling(partial(write, "convert")):
        yield
