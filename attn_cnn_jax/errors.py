"""The one exception that a command turns into a line of text."""


class UserError(Exception):
    """A mistake that the user can mend: its message says what to change.

    The commands print the message without a traceback and exit with status 2.
    """
