"""Name this package's version; the build reads it here."""

from typing import Final

VERSION: Final = "0.1.0"
