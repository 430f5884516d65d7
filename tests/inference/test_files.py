import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from problems import full_disk, refused

import pcvm_pymc as pcvm
from pcvm_pymc.cli import main
from pcvm_pymc.core.pieces import files
from pcvm_pymc.experiments.datasets import data_folder


def names(folder):
    return sorted(each.name for each in folder.iterdir())


def write_folder(path, content="one"):
    with files.replacing(path) as unfinished:
        (unfinished / "inner").mkdir(parents=True)
        (unfinished / "inner" / "data").write_text(content() if callable(content) else content)
    return path


def test_a_file_is_written_as_a_whole(tmp_path, monkeypatch):
    path = tmp_path / "new" / "file.json"
    files.write_atomically(path, b"first")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match=r"file\.json cannot be written: No space left.*Free space"):
        files.write_atomically(path, b"second")
    assert path.read_bytes() == b"first"
    assert names(path.parent) == ["file.json"]


def test_what_a_killed_writer_left_is_written_over(tmp_path):
    (tmp_path / ".file.pcvm-partial").write_bytes(b"half of something long")
    files.write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


def test_writers_of_one_file_take_turns(tmp_path):
    contents = [bytes([65 + i]) * 200_000 for i in range(6)]

    def write(content):
        for _ in range(5):
            files.write_atomically(tmp_path / "f", content)

    writers = [threading.Thread(target=write, args=[each]) for each in contents]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert (tmp_path / "f").read_bytes() in contents
    assert names(tmp_path) == ["f"]


def test_one_run_has_a_folder(tmp_path):
    folder = tmp_path / "run"
    with files.alone_in(folder):
        words = r"run is in use by another run \(process \d+ on .*wait"
        refused(words, files.alone_in(folder).__enter__, error=files.StoreError)
        assert names(folder) == [".pcvm-lock"]
    assert names(folder) == []
    with files.alone_in(folder):
        pass


HOLDS = """
import pathlib, sys
from pcvm_pymc.core.pieces import files
with files.alone_in(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_killed_run_no_longer_has_its_folder(tmp_path):
    command, pipe = [sys.executable, "-c", HOLDS, tmp_path], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(files.StoreError, match="in use"), files.alone_in(tmp_path):
            pass
        other.kill()
    with files.alone_in(tmp_path):
        pass
    assert names(tmp_path) == []


def values(path):
    return pcvm.load(path)["posterior"]["x"].values.tolist()


def result(*numbers):
    group = xr.Dataset({"x": ("row", np.array(numbers))})
    return xr.DataTree.from_dict({"posterior": group})


@pytest.mark.parametrize("name", ["store", "store.nc"])
def test_a_result_takes_the_place_of_a_result_only(tmp_path, name):
    path = pcvm.save(result(1.0), tmp_path / name)
    pcvm.save(result(2.0, 3.0), path)
    assert values(path) == [2.0, 3.0]
    refused("exists; use overwrite=True", pcvm.save, result(3.0), path, overwrite=False)
    assert names(tmp_path) == [name]
    if path.is_file():
        return
    (path / "notes.txt").write_text("mine")
    refused(r"not written here \(notes\.txt\), and would be lost", pcvm.save, result(3.0), path)
    assert (path / "notes.txt").read_text() == "mine"
    (path / "notes.txt").unlink()
    pcvm.save(result(4.0), path)
    assert values(path) == [4.0]


@pytest.mark.parametrize("name", ["mine", "mine.nc"])
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_is_not_ours_is_kept(tmp_path, what, name):
    path = tmp_path / name
    if what == "folder":
        path.mkdir()
    inner = path / "thesis.txt" if what == "folder" else path
    inner.write_text("years of work")
    refused(f"{name} is a {what} that was not written here", pcvm.save, result(1.0), path)
    assert inner.read_text() == "years of work"
    assert names(tmp_path) == [name]


def test_an_empty_folder_and_a_link_are_filled(tmp_path):
    (tmp_path / "empty").mkdir()
    pcvm.save(result(1.0), tmp_path / "empty")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    pcvm.save(result(2.0), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert values(tmp_path / "empty") == values(tmp_path / "link") == [2.0]


@pytest.mark.parametrize("step", ["inside", "fsync", "rename"])
def test_a_fault_while_a_folder_is_written_leaves_the_old_one(tmp_path, monkeypatch, step):
    path = write_folder(tmp_path / "store")
    if step == "fsync":
        monkeypatch.setattr(os, "fsync", full_disk)
    elif step == "rename":
        monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match=r"store cannot be written: No space left"):
        write_folder(path, full_disk if step == "inside" else "two")
    assert (path / "inner" / "data").read_text() == "one"
    assert names(tmp_path) == ["store"]


def test_a_kill_between_two_names_is_mended(tmp_path):
    path = pcvm.save(result(1.0), tmp_path / "store")
    path.rename(tmp_path / ".store.pcvm-old")
    (tmp_path / ".store.pcvm-partial").mkdir()
    assert values(path) == [1.0]
    path.rename(tmp_path / ".store.pcvm-old")
    pcvm.save(result(2.0), path)
    assert values(path) == [2.0]
    assert names(tmp_path) == ["store"]


def test_what_is_no_result_is_named(tmp_path):
    refused("no does not exist; needed a folder with Zarr", pcvm.load, tmp_path / "no")
    refused("no.nc does not exist; needed a netCDF file", pcvm.load, tmp_path / "no.nc")
    (tmp_path / "file").write_text("")
    refused("file is another thing; needed a folder", pcvm.load, tmp_path / "file")
    result(1.0).to_zarr(tmp_path / "plain", consolidated=False)
    with pytest.warns(UserWarning, match="has no checksum"):
        assert values(tmp_path / "plain") == [1.0]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for write in (
        lambda path: files.write_atomically(path, b""),
        write_folder,
        lambda path: files.alone_in(path).__enter__(),
    ):
        with pytest.raises(OSError, match=r"below cannot be written: [NF][\w ]+; .*Free space"):
            write(tmp_path / "file" / "below")


def test_the_home_folder_of_a_path_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PCVM_DATA", "~/data")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    tree = xr.DataTree(xr.Dataset({"x": ("row", [1.0, 2.0])}))
    assert pcvm.save(tree, "~/a.zarr") == tmp_path / "a.zarr"
    assert pcvm.load(Path("~/a.zarr"))["x"].values.tolist() == [1.0, 2.0]
    assert data_folder() == data_folder("~/data") == tmp_path / "data"
    assert main(["report", "~/none"]) == 2
    assert names(tmp_path) == ["a.zarr", "data"]


@pytest.mark.parametrize("path", [None, 3, b"bytes", [], "", "~nobody there/a"])
def test_paths_are_checked(path):
    refused("place=", files.as_path, path, "place", error=(TypeError, ValueError))
