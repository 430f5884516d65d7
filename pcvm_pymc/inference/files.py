"""What is written to disk: complete or not at all, marked as ours, checked when it is read."""

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
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

MARKER = "pcvm_pymc.json"  # in every folder that is ours: its kind, and the checksum of each file
# ends of the names of locks, of what is not complete yet, and of what is about to be removed
_LOCK, _PARTIAL, _OLD = ".pcvm-lock", ".pcvm-partial", ".pcvm-old"
_SEAL = "checksum"
_NOT_WRITTEN = " cannot be written: "
_KEEP = "name another place, or remove it yourself"


class StoreError(ValueError):
    """A file or folder is damaged, foreign, missing or in use; the message names it and the remedy."""


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


# --- files -------------------------------------------------------------------------------------


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
    except OSError as error:
        if isinstance(error, Timeout) or _NOT_WRITTEN in str(error):
            raise
        out = OSError(
            f"{path}{_NOT_WRITTEN}{error.strerror or error}; what was there is as it was. Free space, "
            "or name a place that can be written"
        )
        out.errno = error.errno
        raise out from None


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is there as a whole or not at all.

    Those who write the same file at the same time take turns.

    Raises
    ------
    OSError
        In one line; nothing of the new file is left.
    """
    partial = _beside(path, _PARTIAL)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(_beside(path, _LOCK)):
            try:
                with partial.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise


def _beside(path: Path, end: str) -> Path:
    return path.with_name(f".{path.name}{end}")


def is_scratch(path: Path) -> bool:
    """Whether a file or folder is a lock, or what a killed writer may leave behind."""
    return path.name.endswith((_LOCK, _PARTIAL, _OLD))


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a path.

    Raises
    ------
    Timeout
        If another process or thread holds it and `wait` is false.
    """
    with FileLock(path, blocking=wait, poll_interval=0.01):
        try:
            yield
        finally:  # removed while it is held: who waits for it notices, and makes a new one
            with suppress(OSError):
                path.unlink()


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
                held.enter_context(_locked(path, wait=False))
                path.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        except Timeout:
            holder = ""
            with suppress(OSError):
                holder = path.read_text(encoding="utf-8", errors="replace")
            raise StoreError(
                f"{folder} is in use by another run ({holder or 'unknown'}); wait until it ends, or name "
                "another folder"
            ) from None
        yield


# --- records and arrays ------------------------------------------------------------------------


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record that goes into JSON with its checksum as the last entry."""
    plain = {key: value for key, value in record.items() if key != _SEAL}
    return plain | {_SEAL: _digest(json.loads(json.dumps(plain)))}


def unsealed(path: Path) -> dict[str, Any]:
    """Return the record in a file with what `sealed` gave.

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
        raise StoreError(f"{path} is damaged ({_first_line(error)})") from None
    if seal != _digest(record):
        raise StoreError(f"{path} is damaged (its checksum differs)")
    return dict(record)


def _digest(record: Any) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _first_line(error: Exception) -> str:
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
    except Exception as error:  # a spoiled archive ends in errors of any kind
        raise StoreError(f"{path} is damaged ({_first_line(error)}); {remedy}") from None
    seal = arrays.pop(_SEAL, None)
    if seal is None:
        raise StoreError(f"{path} is not a {kind} of pcvm_pymc (it has no checksum); {remedy}")
    if str(seal) != checksum_of(kind, arrays):
        raise StoreError(f"{path} is damaged, or not a {kind} (its checksum differs); {remedy}")
    return arrays


# --- folders -----------------------------------------------------------------------------------


@contextmanager
def replaced_folder(path: Path, kind: str, *, overwrite: bool = True) -> Iterator[Path]:
    """Give an empty folder to write into, which replaces `path` once it is complete.

    Its marker names the files and their checksums. Who writes the same folder at the same time waits.

    Parameters
    ----------
    path : Path
    kind : str
        What is in the folder.
    overwrite : bool
        Whether one of the same kind may be replaced.

    Raises
    ------
    StoreError
        If something that is not ours is there, or it is not to be replaced.
    OSError
        If it cannot be written, in one line; what was there is as it was.
    """
    path = path.resolve()
    partial, old = _beside(path, _PARTIAL), _beside(path, _OLD)
    with writing(path), ExitStack() as held:
        path.parent.mkdir(parents=True, exist_ok=True)
        held.enter_context(_locked(_beside(path, _LOCK)))
        _finish_killed(path)
        _check_replaceable(path, kind, overwrite)
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            yield partial
            files = _checksums(partial)
            for name in files:  # all of them reach the disk before the marker
                with (partial / name).open("rb") as file:
                    os.fsync(file.fileno())
            marker = sealed({"format": 1, "kind": kind, "files": files})
            write_atomically(partial / MARKER, json.dumps(marker, indent=1).encode())
            if path.exists():
                path.rename(old)
            partial.rename(path)
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
    if not (path / MARKER).is_file():
        what = "a folder" if path.is_dir() else "a file"
        raise StoreError(f"{path} is {what} that was not written here (no {MARKER}); {_KEEP}")
    foreign = sorted(_checksums(path).keys() - _marked(path, kind, _KEEP).keys())
    if foreign:
        raise StoreError(
            f"{path} has files that were not written here ({_first(foreign)}), and would be lost; move "
            "them, or name another place"
        )
    if not overwrite:
        raise StoreError(f"{path} exists; use overwrite=True, or name another place")


def _marked(folder: Path, kind: str, remedy: str) -> dict[str, str]:
    """Return the checksums in a folder's marker, by file."""
    try:
        marker = unsealed(folder / MARKER)
    except StoreError as error:
        raise StoreError(f"{error}; {remedy}") from None
    if marker["kind"] != kind:
        raise StoreError(f"{folder} holds a {marker['kind']}; needed a {kind}; {remedy}")
    return dict(marker["files"])


def checked_folder(path: Path, kind: str, remedy: str) -> bool:
    """Return whether a folder has a marker; raise unless all files in it are as they were written.

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
    wanted, there = _marked(path, kind, remedy), _checksums(path)
    wrong = {
        "lacks": wanted.keys() - there.keys(),
        "is damaged in": {name for name in wanted if there.get(name, wanted[name]) != wanted[name]},
        "has foreign files": {
            name for name in there.keys() - wanted.keys() if not Path(name).name.startswith(".")
        },
    }
    for what, names in wrong.items():
        if names:
            raise StoreError(f"{path} {what} {_first(sorted(names))}; {remedy}")
    return True


def _checksums(folder: Path) -> dict[str, str]:
    """Return the digests of a folder's files but the marker, by path; empty where one cannot be read."""
    found = {}
    for each in sorted(folder.rglob("*")):
        name = each.relative_to(folder).as_posix()
        if name != MARKER and not each.is_dir():
            found[name] = ""
            with suppress(OSError):
                found[name] = hashlib.sha256(each.read_bytes()).hexdigest()
    return found


def _first(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
