"""Limit the size of recorded values, and the time that encoding one takes.

The time is bounded by counts, not by a clock: a count gives the same recording on every machine.
"""

from __future__ import annotations

from typing import Final

# --- What is recorded of one value --------------------------------------------------------------------------

MAX_DEPTH: Final = 16
"""Levels of nesting recorded when a value is encoded in parts."""
MAX_TENSOR_ELEMENTS: Final = 64
"""Elements of a tensor, or of an array without numbers, up to which they are recorded."""
MAX_ARRAY_NUMBERS: Final = 1 << 16
"""Numbers of an array up to which they are recorded. An image has more: its shape and type are recorded."""
MAX_ARRAY_BYTES: Final = 1 << 20
"""Bytes of an array of any type up to which its elements are recorded."""
MAX_REPR_CHARS: Final = 4096
"""Characters recorded of a ``repr``."""
MAX_PREVIEW_BYTES: Final = 64
"""Bytes of text recorded of a bytes object."""
MAX_KEY_BYTES: Final = 256
"""Bytes recorded of a key that is neither a string, a number, nor a short tuple of those."""
MAX_TUPLE_KEY_PARTS: Final = 6
"""Members up to which a tuple of numbers and strings is a key by its ``repr``."""
MAX_TUPLE_KEY_CHARS: Final = 64
"""Characters of each string in such a tuple."""
MAX_INTEGER_BITS: Final = 14_000
"""Bits up to which an integer is recorded in digits. Python refuses to convert much larger ones."""

# --- How a value's size is estimated ------------------------------------------------------------------------

MAX_ESTIMATED_ENTRIES: Final = 6
"""Entries up to which the values of a dict are visited by the quick estimate."""
MAX_ESTIMATED_LEVELS: Final = 12
"""Containers on the quick estimate's way down. A value with more of them is measured."""
MAX_VISITED: Final = 8192
"""Values visited when the size of a value is measured."""
MAX_VISITED_AGAIN: Final = 128
"""Values visited for a part of few members after MAX_VISITED is used up. Each costs one work unit."""
TYPED_MEMBERS: Final = 4096
"""First members of a list whose types decide whether it is a list of numbers."""
MEASURED_AFTER_LARGE: Final = 256
"""Values that are measured, not just estimated, after one turned out larger than estimated."""

# --- How much is handed to orjson at once, and how much Python does -----------------------------------------

MAX_COPIED_MEMBERS: Final = 1024
"""Members up to which a set, a deque or a mapping that is no dict is copied for orjson."""
MAX_CONVERTED_BYTES: Final = 1 << 20
"""Estimated bytes up to which the content of an object is handed to orjson whole."""
CHUNK_MEMBERS: Final = 1024
"""Members of a large container that are encoded at once."""
SPLIT_PARTS: Final = 16
"""Parts that a chunk is split into when orjson refuses it. Fewer members than this are encoded one by one."""
MAX_WHOLE_BYTES: Final = 1 << 16
"""Estimated bytes up to which a part of at most SPLIT_PARTS members is tried whole."""
MAX_CONVERTED_MEMBERS: Final = 64
"""Members of one part that may be converted for orjson before the part is split."""
MIN_TEXT_CHARS: Final = 4096
"""Characters of a long string that are encoded at once, at the least."""
MAX_WORK_UNITS: Final = 3072
"""Work units of about 0.5 µs that Python spends on a value that is encoded in parts."""
MAX_CONVERSION_UNITS: Final = 1024
"""Work units spent on objects in a value that orjson encodes whole; then the value is encoded in parts."""
MAX_CACHED_TYPES: Final = 1024
"""Types whose converter is remembered."""
