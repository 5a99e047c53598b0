"""A function tool, in a module of its own: verl loads it from a file."""

from verl.tools.function_tool import function_tool


@function_tool
def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: One number.
        b: The other.

    Returns:
        Their sum.
    """
    return str(a + b)
