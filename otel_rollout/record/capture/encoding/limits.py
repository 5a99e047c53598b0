"""Limit the size of recorded values, and the time that encoding one takes.

The time is bounded by counts, not by a clock: a count gives the same recording on every machine.
"""

from __future__ import annotations

from typing import Final

# --- What is recorded of one value --------------------------------------------------------------------------

MAX_DEPTH: Final = 16
"""Maximum levels of nesting recorded of a value that is encoded in parts."""
MAX_TENSOR_ELEMENTS: Final = 64
"""Maximum elements in a tensor, or in an array of other types than numbers, that is recorded in full."""
MAX_ARRAY_NUMBERS: Final = 1 << 16
"""Maximum elements in a numeric array that is recorded in full. Of a larger one, such as an image, the shape
and type are recorded."""
MAX_ARRAY_BYTES: Final = 1 << 20
"""Maximum bytes of an array of any type that is recorded in full."""
MAX_REPR_CHARS: Final = 4096
"""Maximum characters recorded of a ``repr``."""
MAX_PREVIEW_BYTES: Final = 64
"""Maximum bytes of text recorded of a bytes object."""
MAX_KEY_BYTES: Final = 256
"""Maximum bytes recorded of a key that is neither a string, nor a number, nor a short tuple of strings and
numbers."""
MAX_TUPLE_KEY_PARTS: Final = 6
"""Maximum members of a tuple whose ``repr`` is recorded as a key."""
MAX_TUPLE_KEY_CHARS: Final = 64
"""Maximum characters of each string in a tuple whose ``repr`` is recorded as a key."""
MAX_INTEGER_BITS: Final = 14_000
"""Maximum bits of an integer that is recorded in digits. Python refuses to convert much larger integers."""

# --- How a value's size is estimated ------------------------------------------------------------------------

MAX_ESTIMATED_ENTRIES: Final = 6
"""Maximum entries of a dict whose values the quick estimate visits."""
MAX_ESTIMATED_LEVELS: Final = 12
"""Maximum containers on the quick estimate's way down to a member. A value with more is measured."""
MAX_VISITED: Final = 8192
"""Maximum values visited to measure the size of a value."""
MAX_VISITED_AGAIN: Final = 128
"""Maximum values visited for a part of few members after MAX_VISITED is used up. Each visit costs one work
unit."""
TYPED_MEMBERS: Final = 4096
"""First members of a list whose types decide whether the list is one of numbers."""
MEASURED_AFTER_LARGE: Final = 256
"""Values that are measured, not only estimated, after a value was larger than its estimate."""

# --- How much is handed to orjson at once, and how much Python does -----------------------------------------

MAX_COPIED_MEMBERS: Final = 1024
"""Maximum members of a set, a deque or a mapping other than a dict that is copied for orjson."""
MAX_CONVERTED_BYTES: Final = 1 << 20
"""Maximum estimated bytes of an object's content that is handed to orjson whole."""
CHUNK_MEMBERS: Final = 1024
"""Members of a large container that are encoded at once."""
SPLIT_PARTS: Final = 16
"""Parts into which a chunk is split when orjson refuses the chunk. This many members, or fewer, are encoded
one by one."""
MAX_WHOLE_BYTES: Final = 1 << 16
"""Maximum estimated bytes of a part of at most SPLIT_PARTS members that orjson is given whole."""
MAX_CONVERTED_MEMBERS: Final = 64
"""Maximum members of one part that are converted for orjson before the part is split."""
MIN_TEXT_CHARS: Final = 4096
"""Fewest characters of a long string that the first attempt encodes at once."""
MAX_WORK_UNITS: Final = 3072
"""Maximum work units, of about 0.5 µs each, that Python spends on a value that is encoded in parts."""
MAX_CONVERSION_UNITS: Final = 1024
"""Maximum work units spent on objects in a value that orjson encodes whole. A value that needs more is
encoded in parts."""
MAX_CACHED_TYPES: Final = 1024
"""Maximum types whose converter is cached."""
