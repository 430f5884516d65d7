"""Files on disk: written completely or not at all, and folders that one process has."""

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

# ends of the names of locks, of what is not complete yet, and of what is about to be removed
_LOCK, _PARTIAL, _OLD = ".pcvm-lock", ".pcvm-partial", ".pcvm-old"


class StoreError(ValueError):
    """A file or folder is damaged, foreign, missing or in use; the message names it and the remedy."""


def as_path(path: Any, name: str) -> Path:
    """Return an argument as a path; ``~`` is the home folder.

    Raises
    ------
    TypeError
        For anything else.
    ValueError
        If it is empty, no system takes it, or there is no such home folder.
    """
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise TypeError(f"{name}={path!r}; needed a path, as a string or pathlib.Path")
    if not os.fspath(path).strip() or "\0" in os.fspath(path):
        raise ValueError(f"{name}={path!r}; needed a path that names a file or folder")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        fault = f"{name}={path!r} is in an unknown home folder"
        raise StoreError(f"{fault}; needed the whole path, or ./ before a name with ~") from None


# --- writing -----------------------------------------------------------------------------------


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the disk into one line that names the place and the reason.

    Raises
    ------
    OSError
        With the number of the one that was caught.
    """
    try:
        yield
    except Timeout:
        raise
    except OSError as error:
        out = OSError(
            f"{path} cannot be written: {error.strerror or error}; it is intact. Free space, or name another"
        )
        out.errno = error.errno
        raise out from None


@contextmanager
def replacing(path: Path, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Yield a temporary path for a file or folder that replaces `path` once it is complete.

    Those who write to the same path at the same time take turns.

    Parameters
    ----------
    path : Path
    check : callable
        Called once no other writer is active; raises where `path` must not be replaced.

    Raises
    ------
    OSError
        If it cannot be written, in one line; what was there is as it was.
    """
    partial, old = _hidden(path, _PARTIAL), _hidden(path, _OLD)
    with writing(path), ExitStack() as stack:
        path.parent.mkdir(parents=True, exist_ok=True)
        stack.enter_context(_locked(_hidden(path, _LOCK)))
        restore_killed(path)
        check()
        try:
            shutil.rmtree(partial, ignore_errors=True)
            yield partial
            # all of it reaches the disk before its name
            for item in (partial, *partial.rglob("*")):
                if item.is_file():
                    with item.open("rb") as file:
                        os.fsync(file.fileno())
            if path.is_dir():  # unlike a file, it cannot be replaced in one step
                path.rename(old)
            partial.replace(path)
        except BaseException:
            restore_killed(path)
            shutil.rmtree(partial) if partial.is_dir() else partial.unlink(missing_ok=True)
            raise
        shutil.rmtree(old, ignore_errors=True)


def restore_killed(path: Path) -> None:
    """Restore a folder that a writer had renamed when it was killed."""
    old = _hidden(path, _OLD)
    if old.exists() and not path.exists():
        old.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is there completely or not at all; see `replacing`."""
    with replacing(path) as unfinished:
        unfinished.write_bytes(content)


def _hidden(path: Path, end: str) -> Path:
    return path.with_name(f".{path.name}{end}")


def is_scratch(path: Path) -> bool:
    """Whether a file or folder is a lock, or what a killed writer may leave behind."""
    return path.name.endswith((_LOCK, _PARTIAL, _OLD))


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Lock a path; raise Timeout if another process or thread has locked it and `wait` is false."""
    with FileLock(path, blocking=wait, poll_interval=0.01):
        try:
            yield
        finally:  # removed while it is locked: those who wait for it notice, and make a new one
            with suppress(OSError):
                path.unlink()


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock a folder, made where it is missing, for the only run that may write into it.

    Raises
    ------
    StoreError
        If another process has locked it.
    OSError
        If it cannot be written, in one line.
    """
    path = folder / _LOCK
    with ExitStack() as stack:
        try:
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(_locked(path, wait=False))
                holder = f"process {os.getpid()} on {socket.gethostname()}"
                path.write_text(holder, encoding="utf-8")
        except Timeout:
            holder = ""
            with suppress(OSError):
                holder = path.read_text(encoding="utf-8", errors="replace")
            fault = f"{folder} is in use by another run ({holder or 'unknown'})"
            raise StoreError(f"{fault}; wait, or name another folder") from None
        yield
