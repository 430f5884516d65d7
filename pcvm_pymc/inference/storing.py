"""Results on disk: Zarr or netCDF, as a whole or not at all, marked as ours, checked when they are read."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import xarray as xr

from pcvm_pymc.core.pieces.validation import check_flag
from pcvm_pymc.inference import files
from pcvm_pymc.inference.files import MARKER, StoreError, checked_folder, replaced_folder

_KIND = "result"
_REMEDY = "name a folder that save wrote, or a copy of it, or make the result again"
_WRITER = "written_by"  # attribute of a netCDF file's root
_CHECKSUM = "checksum"
_OURS = "pcvm_pymc.save"
_NO_CHECKSUMS = "as one that was not written by save: damage cannot be told"


def save(tree: xr.DataTree, path: str | Path, *, overwrite: bool = True) -> Path:
    """Write a result as Zarr, with a marker and the checksum of each file (``pcvm_pymc.json``).

    Where the path ends in ``.nc`` as netCDF (which needs the extra ``pcvm-pymc[netcdf]``), with a checksum of
    its content.

    Parameters
    ----------
    tree : DataTree
    path : path
        A folder, or netCDF file, that does not exist, is empty, or was written by this function.
    overwrite : bool
        Whether a result of that name is replaced, once the new one is complete.

    Returns
    -------
    Path

    Raises
    ------
    ValueError
        If a folder or file lies there that this function did not write, or that has other files in it:
        nothing is removed.
    TypeError
        If `tree` is no DataTree, or `path` no path.
    OSError
        If it cannot be written, in one line; what lay there is as it was.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from pcvm_pymc import find_map_em, pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> mode = find_map_em(pcvm_model(X, X[:, 0] > 0, width=1.0), progressbar=False)
    >>> path = save(mode, f"{tempfile.mkdtemp()}/mode.zarr")
    >>> sorted(each.name for each in path.iterdir())[-2:]
    ['posterior', 'zarr.json']
    """
    if not isinstance(tree, xr.DataTree):
        raise TypeError(f"tree is a {type(tree).__name__}; needed a DataTree, as from find_map_em")
    place = files.as_path(path, "path")
    check_flag("overwrite", overwrite)
    if place.suffix not in _FORMATS:
        with replaced_folder(place, _KIND, overwrite=overwrite) as unfinished, _quiet_storage():
            tree.to_zarr(str(unfinished), mode="w")
        return place
    form = _FORMATS[place.suffix]
    form.check(place)
    if place.exists():
        is_ours = False
        with suppress(Exception):  # libraries raise errors of many kinds for files of other formats
            is_ours = form.read(place).attrs.get(_WRITER) == _OURS
        if not is_ours:
            raise StoreError(
                f"{place} is a file that was not written here; name another place, or remove it yourself"
            )
        if not overwrite:
            raise StoreError(f"{place} exists; use overwrite=True, or name another place")
    marked = tree.copy()
    marked.attrs |= {_WRITER: _OURS, _CHECKSUM: _content_checksum(tree)}
    with TemporaryDirectory() as folder:
        whole = Path(folder) / place.name
        form.write(marked, whole)
        content = whole.read_bytes()
    files.write_atomically(place, content)
    return place


class _Format(NamedTuple):
    """A way to write a result as one file."""

    name: str
    check: Callable[[Path], None]  # raises where its libraries are missing
    write: Callable[[xr.DataTree, Path], None]
    read: Callable[[Path], xr.DataTree]  # into memory


def _check_netcdf(path: Path) -> None:
    """Raise unless what reads and writes netCDF is installed."""
    missing = [name for name in ("h5netcdf", "h5py") if find_spec(name) is None]
    if missing:
        raise ImportError(
            f"{path} is netCDF, for which {' and '.join(missing)} is missing; install pcvm-pymc[netcdf], or "
            "name a folder for Zarr"
        )


def _read_netcdf(path: Path) -> xr.DataTree:
    """Read a netCDF file, once HDF5 itself has: its wrapper does not end cleanly on other files."""
    import h5py

    h5py.File(path).close()
    with xr.open_datatree(str(path), engine="h5netcdf") as stored:
        return stored.load()


_NETCDF = _Format(
    "netCDF", _check_netcdf, partial(xr.DataTree.to_netcdf, engine="h5netcdf"), _read_netcdf
)
#: by the end of a file's name; any other name is that of a folder with Zarr
_FORMATS = {".nc": _NETCDF, ".netcdf": _NETCDF}


def _content_checksum(tree: xr.DataTree) -> str:
    """Return a digest of all variables and coordinates of a tree."""
    values = {
        f"{group.path}/{name}": np.asarray(each.values)
        for group in tree.subtree
        for name, each in group.to_dataset(inherit=False).variables.items()
    }
    for name, each in values.items():
        if each.dtype.kind == "O":  # text, as which it comes back
            values[name] = each.astype("U")
    return files.checksum_of(_KIND, values)


def load(path: str | Path) -> xr.DataTree:
    """Read a result that `save` wrote, into memory; ArviZ's Zarr and netCDF as well.

    Parameters
    ----------
    path : path

    Returns
    -------
    DataTree
        With all that `predict` needs; a kernel that is a function is handed to it again.

    Raises
    ------
    ValueError
        If it does not exist, a file is missing or not as it was written, or is neither Zarr nor netCDF.

    Warns
    -----
    UserWarning
        If there are no checksums, as where ArviZ wrote it: damage cannot be told.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from pcvm_pymc import find_map_em, pcvm_model, save
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> mode = find_map_em(pcvm_model(X, X[:, 0] > 0, width=1.0), progressbar=False)
    >>> again = load(save(mode, f"{tempfile.mkdtemp()}/mode.zarr"))
    >>> again["posterior"].identical(mode["posterior"])
    True
    """
    place = files.as_path(path, "path")
    if place.suffix in _FORMATS:
        return _load_file(place, _FORMATS[place.suffix])
    if not checked_folder(place, _KIND, _REMEDY):
        warnings.warn(
            f"{path} has no checksums ({MARKER}), {_NO_CHECKSUMS}", UserWarning, stacklevel=2
        )
    try:
        with _quiet_storage():
            return xr.open_datatree(str(place), engine="zarr").load()
    except Exception as error:  # Zarr and its codecs have errors of many kinds
        raise StoreError(f"{path} cannot be read as Zarr ({error}); {_REMEDY}") from None


def _load_file(path: Path, form: _Format) -> xr.DataTree:
    form.check(path)
    if not path.is_file():
        raise StoreError(f"{path} does not exist; needed a {form.name} file; {_REMEDY}")
    try:
        tree = form.read(path)
    except Exception as error:  # libraries raise errors of many kinds
        raise StoreError(f"{path} cannot be read as {form.name} ({error}); {_REMEDY}") from None
    checksum = tree.attrs.pop(_CHECKSUM, None)
    if tree.attrs.pop(_WRITER, None) != _OURS or checksum is None:
        said = f"{path} has no checksum of its content, {_NO_CHECKSUMS}"
        warnings.warn(said, UserWarning, stacklevel=3)
    elif checksum != _content_checksum(tree):
        raise StoreError(f"{path} is damaged (its checksum differs); {_REMEDY}")
    return tree


@contextmanager
def _quiet_storage() -> Iterator[None]:
    """Silence Zarr's note that version 3 has no specification of consolidated metadata yet."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Consolidated metadata", category=UserWarning)
        yield
