"""The `pcvm` command."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from pcvm_pymc import __version__
from pcvm_pymc.core.pieces.files import StoreError, as_path
from pcvm_pymc.experiments.errors import UsageError, first_line

type Option = tuple[str, str, dict[str, Any]]  # name, help, other arguments of `add_argument`

_FLAG = {"action": "store_true"}
_NUMBER = {"type": int, "metavar": "N"}
_FOLDER = {"type": Path, "metavar": "FOLDER"}
_FILE = {"type": Path, "nargs": "?", "metavar": "FILE.csv"}
_COMPARED = _FOLDER | {"default": Path("pcvm-compare")}
_NAME = {"metavar": "NAME"}
_NAMES = {"nargs": "+", "metavar": "NAME"}
_MARK = {"metavar": "MARK"}
_MARKS = {"type": lambda text: text.split(","), "default": [], "metavar": "MARK,..."}
_SHARE = {"type": float, "metavar": "SHARE|ROWS"}
_WIDTH = {"default": "auto", "metavar": "W|auto"}
_SEED = ("--seed", "random seed (default: 0)", _NUMBER | {"default": 0})


class _Command(NamedTuple):
    """A command: the function of the experiments that runs it, and its options."""

    run: tuple[str, str]  # module and function
    description: str
    options: tuple[Option, ...]
    stopped: str = "nothing was written"  # what an interrupt leaves


_COMMANDS = {
    "compare": _Command(
        ("cli.comparing", "compare"),
        "Compare PCVM, posterior and rivals on held-out rows. The paper's sparse MAP, the averaged MAP, its "
        "ten vectors, a posterior, a tuned SVC and logistic regression are fitted on several stratified "
        "splits of a table (default: Wisconsin breast cancer).",
        (
            ("file", "a table with a label column", _FILE),
            ("--target", "label column (default: the last)", {"metavar": "COLUMN"}),
            ("--sep", "what separates fields, such as ';' or tab (default: a comma)", _MARK),
            ("--missing", "texts of missing fields, such as NA,? (default: empty ones)", _MARKS),
            ("--width", "kernel width of standardised features (default: chosen)", _WIDTH),
            _SEED,
            ("--force", "write over what exists", _FLAG),
            ("--test-size", "held-out share or rows (default: 0.3; 449 of the example)", _SHARE),
            ("--splits", "stratified splits (default: 10)", _NUMBER | {"default": 10}),
            ("--posteriors", "splits with a posterior (default: 3; 1 of several classes)", _NUMBER),
            ("--draws", "draws and tuning steps (default: 500)", _NUMBER | {"default": 500}),
            ("--chains", "chains (default: 4)", _NUMBER | {"default": 4}),
            ("--jobs", "processes that fit splits (default: one for each processor)", _NUMBER),
            ("--out", "output folder (default: pcvm-compare)", _COMPARED),
        ),
        "the splits that were finished stay in the output folder",
    ),
    "reproduce": _Command(
        ("experiments.commands", "reproduce"),
        "Run an experiment of the papers, or ALL of them. Every finished job is written at once: stop it "
        "with Ctrl-C, and the same command goes on. With ALL the exit code is 1 if a job failed.",
        (
            ("name", "such as chen2009-table1, see `pcvm list`; or ALL", _NAME),
            ("--sets", "data sets (default: the experiment's)", _NAMES | {"metavar": "SET"}),
            ("--classifiers", "names, or module:attribute of your own; +NAME adds one", _NAMES),
            ("--repeats", "realisations scored (default: the paper's)", _NUMBER),
            ("--jobs", "processes (default: 1)", _NUMBER | {"default": 1}),
            _SEED,
            ("--out", "output folder (default: pcvm-NAME)", _FOLDER),
            ("--small", "a quick run: fewer rows, sets and classifiers unless named", _FLAG),
            ("--dask", "address of a Dask scheduler that runs the jobs", {"metavar": "ADDRESS"}),
            ("--download", "fetch missing sets from openml.org where it has them", _FLAG),
            ("--retry", "run jobs again that have failed", _FLAG),
        ),
        "what was finished stays in the output folder, and the same command goes on",
    ),
    "list": _Command(
        ("experiments.commands", "list_names"),
        "Name the experiments, data sets or classifiers.",
        (
            ("--sets", "the data sets, and which are here", _FLAG),
            ("--classifiers", "the classifiers", _FLAG),
        ),
    ),
    "report": _Command(
        ("experiments.commands", "report"),
        "Write the report of a run, finished or not: csv, Markdown, HTML, pictures.",
        (
            ("folder", "of `pcvm reproduce`", _FOLDER),
            ("--experiment", "another table of the run, such as chen2009-table3", _NAME),
            ("--out", "where to write (default: FOLDER/report)", _FOLDER),
        ),
        "the report was not finished",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="pcvm", description="Sparse Bayesian kernel classifiers for PyMC."
    )
    parser.add_argument("--version", action="version", version=f"pcvm {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, command in _COMMANDS.items():
        said = command.description
        own: Any = commands.add_parser(name, help=said.split(".")[0], description=said)
        own.set_defaults(command=command)
        group = own.add_mutually_exclusive_group() if name == "list" else own
        for option, text, settings in command.options:
            group.add_argument(option, help=text, **settings)
    options = parser.parse_args(arguments)
    if not hasattr(options, "command"):
        parser.print_help()
        return 0
    try:
        # imported here: `pcvm compare --help` does not wait for PyMC
        module, function = options.command.run
        run = getattr(import_module(f"pcvm_pymc.{module}"), function)
        given = {name: value for name, value in vars(options).items() if isinstance(value, Path)}
        vars(options).update({name: as_path(path, name) for name, path in given.items()})
        return run(options, Console()) or 0
    except (UsageError, StoreError, OSError, MemoryError) as error:
        print(f"pcvm: error: {first_line(error)}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        print(f"pcvm: stopped; {options.command.stopped}", file=sys.stderr)  # noqa: T201
        return 130
