"""Addresses of tables are resolved."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_rollout.table.location import location_of


@pytest.mark.parametrize("uri", ["/a%20b/table", "table%41", "file:///a%2520b/table"])
def test_path_that_deltalake_reads_as_another_is_refused(uri: str) -> None:
    """Rows would be written to ``a%20b`` and looked for in ``a b``."""
    with pytest.raises(ValueError, match=r"^the table's address is .*deltalake cannot read a directory with"):
        location_of(uri)


@pytest.mark.parametrize("uri", ["s3//bucket/table", "s3:/bucket/table", "gs//bucket/table"])
def test_misspelt_address_of_an_object_store_is_no_directory(uri: str) -> None:
    """A missing character does not write the table into a folder ``s3``."""
    with pytest.raises(ValueError, match="expected a directory, or s3://BUCKET/PATH"):
        location_of(uri)


@pytest.mark.parametrize("uri", ["/a b/100%", "file:///a%20b/100%25", "/a b/x/../100%/"])
def test_other_characters_are_part_of_a_path(uri: str) -> None:
    """Blanks and a percent sign alone are harmless."""
    assert location_of(uri).path == Path("/a b/100%")
