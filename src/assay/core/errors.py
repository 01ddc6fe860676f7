"""One exception is meant for people."""


class UserError(Exception):
    """Signals something the user can fix: printed without a traceback, exit code 2; the text says how."""
