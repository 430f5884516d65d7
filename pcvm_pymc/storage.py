"""What is kept on disk: written as a whole or not at all, marked as ours, checked when it is read."""

import hashlib
import io
import json
import os
import shutil
import socket
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

try:
    import fcntl
except ImportError:  # Windows has none: runs on one folder do not take turns there
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "MARKER",
    "StoreError",
    "alone_in",
    "as_path",
    "checked_folder",
    "checksum_of",
    "is_scratch",
    "read_arrays",
    "replaced_folder",
    "sealed",
    "unsealed",
    "write_arrays",
    "write_atomically",
    "writing",
]

MARKER = "pcvm_pymc.json"  # in every folder that is ours: kind, and the checksum of each file
_LOCK = ".pcvm-lock"
_PARTIAL, _OLD = (
    ".pcvm-partial",
    ".pcvm-old",
)  # ends of the names of what is not yet, or no longer, there
_SEAL = "checksum"


class StoreError(ValueError):
    """What lies on disk is damaged, foreign, missing or in use; the message has its place and the remedy."""


def as_path(path: Any, name: str) -> Path:
    """Return a path that was given as a string or path.

    Raises
    ------
    TypeError
        For anything else.
    ValueError
        If it is empty, or no system takes it.
    """
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise TypeError(f"{name}={path!r}; needed a path, as a string or pathlib.Path")
    if not os.fspath(path).strip() or "\0" in os.fspath(path):
        raise ValueError(f"{name}={path!r}; needed a path that names a file or folder")
    return Path(path)


# --- errors of the disk ------------------------------------------------------------------------


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in one line which place cannot be written, and why.

    Raises
    ------
    OSError
        With the number of the one that was caught.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, _CannotWriteError | BlockingIOError):
            raise
        raise _CannotWriteError(path, error) from None


class _CannotWriteError(OSError):
    def __init__(self, path: Path, error: OSError) -> None:
        reason = error.strerror or str(error)
        super().__init__(
            f"{path} cannot be written: {reason}; what was there is as it was. Free space, or name "
            "a place that can be written"
        )
        self.errno = error.errno


# --- files -------------------------------------------------------------------------------------


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is there as a whole or not at all.

    Those who write the same file at the same time take turns. What a killed one left behind is written over
    by the next.

    Raises
    ------
    OSError
        In one line; nothing of the new file is left.
    """
    partial = _beside(path, _PARTIAL)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(partial, wait=True) as file:
            try:
                file.truncate(0)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                if fcntl is None:  # an open file has no new name on Windows
                    file.close()
                partial.replace(path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise


def _beside(path: Path, end: str) -> Path:
    return path.with_name(f".{path.name}{end}")


def is_scratch(path: Path) -> bool:
    """Whether a file or folder is what a writer works with, or left behind where it was killed."""
    return path.name == _LOCK or path.name.endswith((_PARTIAL, _OLD))


@contextmanager
def _locked(path: Path, *, wait: bool) -> Iterator[IO[bytes]]:
    """Open a file that nobody else has open this way; it is the caller's to rename or remove it.

    Raises
    ------
    BlockingIOError
        If someone else has it and `wait` is false.
    """
    while True:
        with path.open("ab+") as file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                except BlockingIOError:
                    raise
                except OSError:  # a file system without locks
                    yield file
                    return
            if _is_at(file, path):  # else the one before has renamed or removed it
                yield file
                return


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        return fcntl is None or os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder, made where it is missing, for the only run that may write into it.

    Raises
    ------
    StoreError
        If another process has it.
    OSError
        If it cannot be written, in one line.
    """
    path = folder / _LOCK
    with ExitStack() as held:
        try:
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
                file = held.enter_context(_locked(path, wait=False))
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
                file.flush()
        except BlockingIOError:
            holder = ""
            with suppress(OSError):
                holder = path.read_text(encoding="utf-8", errors="replace")
            raise StoreError(
                f"{folder} is in use by another run ({holder or 'unknown'}); wait until it ends, or name "
                "another folder"
            ) from None
        held.callback(path.unlink, missing_ok=True)  # while it is still held
        yield


# --- records and arrays ------------------------------------------------------------------------


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record that goes into JSON with its checksum as the last entry."""
    plain = {key: value for key, value in record.items() if key != _SEAL}
    return plain | {_SEAL: _digest(json.loads(json.dumps(plain)))}


def unsealed(path: Path) -> dict[str, Any]:
    """Return the record in a file that holds what `sealed` gave.

    Raises
    ------
    StoreError
        If it cannot be read, is no JSON, or is not what was written.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        seal = record.pop(_SEAL)
    except FileNotFoundError:
        raise StoreError(f"{path} is missing") from None
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path} is damaged ({_said(error)})") from None
    if seal != _digest(record):
        raise StoreError(f"{path} is damaged (its checksum differs)")
    return dict(record)


def _digest(record: Any) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _said(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def checksum_of(kind: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return a digest of named arrays: of their names, types, shapes and values."""
    digest = hashlib.sha256(kind.encode())
    for name in sorted(arrays):
        each = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {each.dtype.str} {arrays[name].shape}".encode())
        digest.update(each.tobytes())
    return digest.hexdigest()


def write_arrays(
    path: Path, kind: str, arrays: Mapping[str, Any], *, compressed: bool = False
) -> None:
    """Write named arrays as npz, with a checksum as one more; see `write_atomically`."""
    values: dict[str, Any] = {name: np.asarray(value) for name, value in arrays.items()}
    values[_SEAL] = np.array(checksum_of(kind, values))
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **values)
    write_atomically(path, buffer.getvalue())


def read_arrays(path: Path, kind: str, remedy: str) -> dict[str, NDArray[Any]]:
    """Return the arrays in a file of `write_arrays`.

    Raises
    ------
    StoreError
        If it cannot be read, is not of this kind, or not what was written; it ends with the remedy.
    """
    try:
        content = io.BytesIO(path.read_bytes())  # np.load leaves a file that it cannot read open
        with warnings.catch_warnings(), np.load(content, allow_pickle=False) as stored:
            warnings.simplefilter("error")
            arrays = {name: stored[name] for name in stored.files}
    except Exception as error:  # what a spoiled archive ends in has no bounds
        raise StoreError(f"{path} is damaged ({_said(error)}); {remedy}") from None
    seal = arrays.pop(_SEAL, None)
    if seal is None:
        raise StoreError(f"{path} is not a {kind} of pcvm_pymc (it has no checksum); {remedy}")
    if str(seal) != checksum_of(kind, arrays):
        raise StoreError(f"{path} is damaged, or not a {kind} (its checksum differs); {remedy}")
    return arrays


# --- folders -----------------------------------------------------------------------------------


@contextmanager
def replaced_folder(path: Path, kind: str, *, overwrite: bool = True) -> Iterator[Path]:
    """Give an empty folder to write into, which takes its place once it is complete.

    Its marker names the files and their checksums. Who writes the same folder at the same time waits.

    Parameters
    ----------
    path : Path
    kind : str
        What the folder holds.
    overwrite : bool
        Whether one of the same kind may be replaced.

    Raises
    ------
    StoreError
        If something lies there that is not ours, or is not to be replaced.
    OSError
        If it cannot be written, in one line; what lay there is as it was.
    """
    path = path.resolve()
    partial, old = _beside(path, _PARTIAL), _beside(path, _OLD)
    with ExitStack() as held:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            turn = _beside(path, _LOCK)
            held.enter_context(_locked(turn, wait=True))
            held.callback(turn.unlink, missing_ok=True)
            _finish_killed(path)
        _check_replaceable(path, kind, overwrite)
        try:
            with writing(path):
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                yield partial
                _mark(partial, kind)
                if path.exists():
                    path.rename(old)
                partial.rename(path)
                _flush(path.parent)
        except BaseException:
            if old.exists() and not path.exists():
                old.rename(path)
            shutil.rmtree(partial, ignore_errors=True)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _finish_killed(path: Path) -> None:
    """Bring back what a writer had put aside when it was killed."""
    old = _beside(path, _OLD)
    if old.exists() and not path.exists():
        old.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def _check_replaceable(path: Path, kind: str, overwrite: bool) -> None:
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    remedy = "name another place, or remove it yourself"
    if not (path / MARKER).is_file():
        what = "a folder" if path.is_dir() else "a file"
        raise StoreError(f"{path} is {what} that was not written here (no {MARKER}); {remedy}")
    marker = _marker(path, remedy)
    if marker["kind"] != kind:
        raise StoreError(f"{path} holds a {marker['kind']}; needed a {kind}; {remedy}")
    foreign = sorted(set(_files(path)) - set(marker["files"]))
    if foreign:
        raise StoreError(
            f"{path} has files that were not written here ({_first(foreign)}), and would be lost; move "
            "them, or name another place"
        )
    if not overwrite:
        raise StoreError(f"{path} exists; use overwrite=True, or name another place")


def _mark(folder: Path, kind: str) -> None:
    """Write the marker, once all files have reached the disk."""
    files = {}
    for name in _files(folder):
        with (folder / name).open("rb") as file:
            files[name] = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
    marker = sealed({"format": 1, "kind": kind, "files": files})
    write_atomically(folder / MARKER, json.dumps(marker, indent=1).encode())


def _marker(folder: Path, remedy: str) -> dict[str, Any]:
    try:
        return unsealed(folder / MARKER)
    except StoreError as error:
        raise StoreError(f"{error}; {remedy}") from None


def checked_folder(path: Path, kind: str, remedy: str) -> bool:
    """Return whether a folder has a marker; raise unless all that it names is as it was written.

    Raises
    ------
    StoreError
        If files are missing, changed, or too many, or there is no such folder; it ends with the remedy.
    """
    if not path.exists() and _beside(path, _OLD).exists():
        with writing(path):
            _finish_killed(path)
    if not path.is_dir():
        found = "is a file" if path.exists() else "does not exist"
        raise StoreError(f"{path} {found}; needed a folder with a {kind}; {remedy}")
    if not (path / MARKER).exists():
        return False
    marker = _marker(path, remedy)
    if marker["kind"] != kind:
        raise StoreError(f"{path} holds a {marker['kind']}; needed a {kind}; {remedy}")
    there, named = set(_files(path)), set(marker["files"])
    spoiled = [name for name in there & named if not _is_same(path / name, marker["files"][name])]
    foreign = [name for name in there - named if not name.rpartition("/")[2].startswith(".")]
    for what, names in (
        ("lacks", named - there),
        ("is damaged in", spoiled),
        ("has foreign files", foreign),
    ):
        if names:
            raise StoreError(f"{path} {what} {_first(sorted(names))}; {remedy}")
    return True


def _is_same(path: Path, checksum: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == checksum
    except OSError:
        return False


def _files(folder: Path) -> list[str]:
    """Return the files of a folder but the marker, by their paths within it."""
    found = (each for each in folder.rglob("*") if not each.is_dir())
    names = (each.relative_to(folder).as_posix() for each in found)
    return sorted(name for name in names if name != MARKER)


def _first(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _flush(folder: Path) -> None:
    """Make the names in a folder reach the disk."""
    with suppress(OSError):  # not every system can open a folder
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
