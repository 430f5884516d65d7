"""Error messages for input that cannot be used."""

import difflib
from collections.abc import Iterable, Mapping


class UsageError(Exception):
    """Input that the user can mend: one line, exit code 2."""


def first_line(error: Exception) -> str:
    """Return the first line of what an exception says, its type's name if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return "did you mean ...? " with the names nearest to an unknown one; nothing if none is near."""
    close = difflib.get_close_matches(name, list(known), n=3)
    return f"did you mean {', '.join(close)}? " if close else ""


def entry_of[T](kind: str, name: str, table: Mapping[str, T], remedy: str) -> T:
    """Return what a table has under a name.

    Raises
    ------
    ValueError
        If it has nothing; the message has the nearest names, and the remedy.
    """
    if name not in table:
        raise ValueError(f"{kind} {name!r} is unknown; {suggestion(name, table)}{remedy}")
    return table[name]
