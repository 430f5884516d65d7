"""What the command line says in one line."""

__all__ = ["UsageError"]


class UsageError(Exception):
    """Input that the user can mend: one line, exit code 2."""
