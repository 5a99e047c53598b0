"""What tests of dumps share."""

import pytest

from tests.dumps.reading import OpenedDump


@pytest.fixture
def opened(tmp_path):
    """Open dumps with a cache of the test's own."""

    def open_(*paths, **options):
        return OpenedDump(*paths, kept=tmp_path / "kept", **options)

    return open_
