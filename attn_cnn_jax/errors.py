"""The one exception that a command turns into a line of text, and such lines."""

from typing import Any


class UserError(Exception):
    """A mistake that the user can mend: its message says what to change.

    The commands print the message without a traceback and exit with status 2.
    """


def one_line(value: Any, longest: int = 300) -> str:
    r"""Return `value` as text for a message: one line, printable, of bounded length.

    What a terminal would obey, from the name of a file for example, is shown as Python
    writes it: "\x1b[2J".
    """
    try:
        text = str(value)
    except Exception:  # a number of 5,000 digits, or a class of the user's own
        text = f"a value of type {type(value).__name__}"
    shown = text if len(text) <= longest else f"{text[: longest - 3]}..."
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown
    )


def first_line(error: BaseException) -> str:
    """Return the first line of what an error of a library says, or its name."""
    lines = str(error).strip().splitlines()
    return one_line(lines[0] if lines else type(error).__name__)
