"""The one exception that is meant for people."""


class UserError(Exception):
    """Something the person at the keyboard can fix: printed without a traceback, exit code 2; the text says how."""
