"""A function tool, in a file of its own as verl wants it."""

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
