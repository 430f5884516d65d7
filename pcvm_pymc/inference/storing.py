"""Results on disk, as Zarr or netCDF: written completely or not at all, verified when they are read."""

import hashlib
import json
import warnings
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pcvm_pymc.core.pieces import files
from pcvm_pymc.core.pieces.files import StoreError
from pcvm_pymc.core.pieces.validation import check_flag
from pcvm_pymc.inference.display import Result
from pcvm_pymc.model.coordinates import storable

#: ends of names of netCDF files; any other name is that of a folder with Zarr
NETCDF = (".nc", ".netcdf")
_REMEDY = "name a result that save wrote, or a copy of it, or make the result again"
_OTHER = "name another place, or remove it yourself"
_WRITER, _CHECKSUM = "written_by", "checksum"  # attributes of the root
_OURS = "pcvm_pymc.save"


def save(tree: xr.DataTree, path: str | Path, *, overwrite: bool = True) -> Path:
    """Write a result as Zarr, with a checksum of its content among its attributes.

    Where the path ends in ``.nc`` as netCDF (which needs the extra ``pcvm-pymc[netcdf]``).

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
        If a folder or file is there that this function did not write, or that has other files in it:
        nothing is removed.
    TypeError
        If `tree` is no DataTree, or `path` no path.
    OSError
        If it cannot be written, in one line; what was there is as it was.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from pcvm_pymc import find_map_em, pcvm_model
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> model = pcvm_model(X, X[:, 0] > 0, width=1.0)
    >>> mode = find_map_em(model, progressbar=False)
    >>> path = save(mode, f"{tempfile.mkdtemp()}/mode.zarr")
    >>> sorted(each.name for each in path.iterdir())[-2:]
    ['posterior', 'zarr.json']
    """
    if not isinstance(tree, xr.DataTree):
        raise TypeError(f"tree is a {type(tree).__name__}; needed a DataTree, as from find_map_em")
    place = files.as_path(path, "path")
    check_flag("overwrite", overwrite)
    marked = tree.map_over_datasets(_storable)
    marked.attrs |= {_WRITER: _OURS, _CHECKSUM: _checksum_of(marked)}
    target = place.resolve()  # of a link, what it points to
    with files.replacing(target, partial(_check_replaceable, target, overwrite)) as unfinished:
        if place.suffix in NETCDF:
            _check_netcdf(place)
            with TemporaryDirectory() as folder:  # HDF5 does not end cleanly on a full disk
                marked.to_netcdf(Path(folder) / place.name, engine="h5netcdf")
                unfinished.write_bytes((Path(folder) / place.name).read_bytes())
        else:
            marked.to_zarr(str(unfinished), mode="w", consolidated=False)
    return place


def _storable(data: xr.Dataset) -> xr.Dataset:
    """Return data with the coordinates that a file can keep, of results that were made elsewhere too."""
    kept = {}
    for name, x in data.coords.items():
        if x.dtype.kind == "O" and x.ndim == 1:
            kept[name] = x.dims, storable(x.values, str(name))
    return data.assign_coords(kept)


def _check_replaceable(path: Path, overwrite: bool) -> None:
    """Raise unless nothing is at a path, or a result that may be replaced."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    try:
        if path.suffix in NETCDF:
            attrs = _read(path).attrs
        else:
            attrs = json.loads((path / "zarr.json").read_text(encoding="utf-8"))["attributes"]
    except Exception:  # libraries raise errors of many kinds for files of other formats
        attrs = {}
    if attrs.get(_WRITER) != _OURS:
        what = "a folder" if path.is_dir() else "a file"
        raise StoreError(f"{path} is {what} that was not written here; {_OTHER}")
    inner = [file.relative_to(path) for file in path.rglob("*") if file.is_file()]
    # Zarr has these alone: a zarr.json in each group and array, and folders "c" of chunks
    foreign = [str(file) for file in inner if file.name != "zarr.json" and "c" not in file.parts]
    if foreign:
        raise StoreError(
            f"{path} has files not written here ({', '.join(foreign[:3])}), and would be lost; {_OTHER}"
        )
    if not overwrite:
        raise StoreError(f"{path} exists; use overwrite=True, or name another place")


def _check_netcdf(path: Path) -> None:
    """Raise unless what reads and writes netCDF is installed."""
    missing = [name for name in ("h5netcdf", "h5py") if find_spec(name) is None]
    if missing:
        raise ImportError(
            f"{path} is netCDF, for which {' and '.join(missing)} is missing; install pcvm-pymc[netcdf]"
        )


def _checksum_of(tree: xr.DataTree) -> str:
    """Return a digest of all variables, coordinates and attributes of a tree."""
    values: dict[str, NDArray[Any]] = {}
    for group in tree.subtree:
        data = group.to_dataset(inherit=False)
        for name, variable in data.variables.items():
            array = np.asarray(variable.values)
            if array.dtype.kind == "O":  # as which text comes back
                array = array.astype("U")
            elif array.dtype.kind in "mM":  # dates come back in another unit
                seconds = array.astype(f"{array.dtype.kind}8[s]")
                rest = (array - seconds).astype("m8[ns]")
                array = np.stack([seconds.astype(np.int64), rest.astype(np.int64)])
            values[f"{group.path}/{name}, {variable.dims}, {name in data.coords}"] = array
        # an attribute of one element comes back as a scalar
        attrs = {name: np.ravel(value).tolist() for name, value in data.attrs.items()}
        values[f"{group.path} attributes"] = np.array(json.dumps(attrs, sort_keys=True))
    digest = hashlib.sha256(b"result")
    for name in sorted(values):
        stored = np.ascontiguousarray(values[name])
        digest.update(f"{name} {stored.dtype.str} {values[name].shape}".encode())
        digest.update(stored.tobytes())
    return digest.hexdigest()


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
        If it does not exist, is not as it was written, or is neither Zarr nor netCDF.

    Warns
    -----
    UserWarning
        If there is no checksum, as where ArviZ wrote it: damage cannot be told.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from pcvm_pymc import find_map_em, pcvm_model, save
    >>> X = np.random.default_rng(0).normal(size=(30, 2))
    >>> model = pcvm_model(X, X[:, 0] > 0, width=1.0)
    >>> mode = find_map_em(model, progressbar=False)
    >>> again = load(save(mode, f"{tempfile.mkdtemp()}/mode.zarr"))
    >>> again["posterior"].identical(mode["posterior"])
    True
    """
    place = files.as_path(path, "path")
    is_netcdf = place.suffix in NETCDF
    what = "a netCDF file" if is_netcdf else "a folder with Zarr"
    files.restore_killed(place.resolve())
    if not (place.is_file() if is_netcdf else place.is_dir()):
        fault = "is another thing" if place.exists() else "does not exist"
        raise StoreError(f"{path} {fault}; needed {what}; {_REMEDY}")
    if is_netcdf:
        _check_netcdf(place)
    try:
        tree = _read(place)
        writer, checksum = tree.attrs.pop(_WRITER, None), tree.attrs.pop(_CHECKSUM, None)
        digest = _checksum_of(tree)
    except Exception as error:  # libraries and their codecs have errors of many kinds
        raise StoreError(f"{path} cannot be read as {what} ({error}); {_REMEDY}") from None
    if writer is None and checksum is None:
        warnings.warn(f"{path} has no checksum of save: damage cannot be told", stacklevel=2)
    elif checksum != digest:
        raise StoreError(f"{path} is damaged (its checksum differs); {_REMEDY}")
    return tree


def _read(path: Path) -> xr.DataTree:
    options: dict[str, Any] = {"engine": "zarr", "consolidated": False}
    if path.suffix in NETCDF:
        import h5py

        h5py.File(path).close()  # the wrapper does not end cleanly on files of other formats
        options = {"engine": "h5netcdf"}
    # in seconds where they are whole ones: those of nanoseconds end in the year 2262
    options["decode_times"] = xr.coders.CFDatetimeCoder(time_unit="s")
    with xr.open_datatree(str(path), **options) as stored:
        groups = stored.load().to_dict()
    return Result.from_dict({name: groups[name] for name in sorted(groups)})
