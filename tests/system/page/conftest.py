from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers import browser as browsers
from tests.helpers.browser import Browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One Chromium for the tests of a file."""
    if why := browsers.missing():
        pytest.skip(why)
    with browsers.browser(tmp_path_factory.mktemp("profile")) as made:
        yield made
