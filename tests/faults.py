"""Damage to files, for the tests of what is kept on disk."""

import errno
import os

import numpy as np


def files_of(place):
    """Return the files of a folder, or a file alone, in one order."""
    return sorted(each for each in place.rglob("*") if each.is_file()) or [place]


def spoil(place, rng):
    """Damage one file at random: bits flipped, cut off, removed, or a foreign one; return what was done."""
    files = files_of(place)
    path = files[rng.integers(len(files))]
    content = bytearray(path.read_bytes())
    how = rng.choice(["flip", "cut", "remove", "foreign", "replace"])
    if how == "flip":
        for at in rng.choice(len(content), size=min(len(content), 3), replace=False):
            content[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
    elif how == "cut":
        path.write_bytes(content[: rng.integers(len(content))])
    elif how == "remove":
        path.unlink()
    elif how == "foreign":
        path.with_name(f"foreign{rng.integers(9)}").write_bytes(rng.bytes(20))
    else:
        path.write_bytes(rng.bytes(int(rng.integers(1, 400))))
    return f"{how} {path.name}"


def answer(read, errors):
    """Return what was read and no words, or nothing and what an error said."""
    try:
        return read(), ""
    except errors as error:
        return None, str(error)


def assert_same(first, second):
    """Compare two results, bit for bit."""
    assert list(first.groups) == list(second.groups)
    for name in first.groups:
        one, two = first[name].to_dataset(), second[name].to_dataset()
        assert one.identical(two) or one.equals(two), name


def full_disk(*_, **__):
    """Stand for a call that finds the disk full."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def generator(*numbers):
    """Return a random generator of its own for a case."""
    return np.random.default_rng(numbers)
