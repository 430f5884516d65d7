"""The `pcvm` command."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from pcvm_pymc import __version__
from pcvm_pymc.experiments.errors import UsageError, first_line
from pcvm_pymc.storage import StoreError

_HEADERS = ("auto", "yes", "no")
_IMPUTE = ("median", "mean", "most_frequent")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not hasattr(options, "run"):
        parser.print_help()
        return 0
    console = Console()
    try:
        # imported here: `pcvm compare --help` does not wait for PyMC
        module, name = options.run
        run = getattr(import_module(f"pcvm_pymc.{module}"), name)
        return run(options, console) or 0
    except (UsageError, StoreError, OSError, MemoryError) as error:
        print(f"pcvm: error: {first_line(error)}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        print(f"pcvm: stopped; {options.stopped}", file=sys.stderr)  # noqa: T201
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pcvm", description="Sparse Bayesian kernel classifiers for PyMC."
    )
    parser.add_argument("--version", action="version", version=f"pcvm {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for add in (_add_fit, _add_predict, _add_compare, _add_reproduce, _add_list, _add_report):
        add(commands)
    return parser


def _command(
    commands: Any, name: str, module: str, description: str, *, stopped: str = "nothing was written"
) -> argparse.ArgumentParser:
    """Return the parser of a command that a function of a module of the package runs."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=description.split(". ", maxsplit=1)[0].removesuffix("."), description=description
    )
    parser.set_defaults(run=(module, name.replace("list", "list_names")), stopped=stopped)
    return parser


def _add_header(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--header",
        choices=_HEADERS,
        default="auto",
        help="whether the first line has names (default: auto, which refuses numbers)",
    )


def _add_table(command: argparse.ArgumentParser) -> None:
    """Add how a table with labels is read."""
    command.add_argument("--target", metavar="COLUMN", help="label column (default: the last)")
    _add_header(command)
    command.add_argument(
        "--categorical",
        action="store_true",
        help="encode columns of text, an indicator for each category",
    )
    command.add_argument(
        "--impute",
        nargs="?",
        const="median",
        choices=_IMPUTE,
        help="fill in missing cells: with the column's median (default), mean or most frequent value",
    )
    command.add_argument(
        "--width",
        default="auto",
        metavar="W|auto",
        help="kernel width after standardisation (default: auto, chosen inside the training rows)",
    )
    command.add_argument(
        "--seed", type=int, default=0, metavar="N", help="random seed (default: 0)"
    )
    command.add_argument("--force", action="store_true", help="write over what exists")


def _add_fit(commands: Any) -> None:
    fit = _command(
        commands,
        "fit",
        "experiments.fitting",
        "Fit a classifier to a table and keep it in a file. The classifier is PCVMClassifier, or "
        "MPCVMClassifier for several classes, on standardised columns.",
    )
    fit.add_argument("file", type=Path, metavar="FILE", help="a table with a label column")
    fit.add_argument("--out", type=Path, required=True, metavar="MODEL", help="the file to write")
    fit.add_argument(
        "--basis", type=int, metavar="N", help="basis functions on N of the rows (default: all)"
    )
    fit.add_argument(
        "--vectors", type=int, metavar="N", help="keep N vectors at most (default: no limit)"
    )
    fit.add_argument("--balanced", action="store_true", help="count classes equally")
    _add_table(fit)


def _add_predict(commands: Any) -> None:
    predict = _command(
        commands,
        "predict",
        "experiments.fitting",
        "Write the class probabilities of a table's rows by a model of `pcvm fit`. A model file holds "
        "numbers and names alone; nothing in it is run.",
    )
    predict.add_argument("model", type=Path, metavar="MODEL", help="of `pcvm fit`")
    predict.add_argument("file", type=Path, metavar="NEW.csv", help="a table with the same columns")
    predict.add_argument(
        "--out", type=Path, metavar="FILE.csv", help="where to write (default: the terminal)"
    )
    _add_header(predict)
    predict.add_argument("--force", action="store_true", help="replace a file that exists")


def _add_compare(commands: Any) -> None:
    compare = _command(
        commands,
        "compare",
        "cli.comparing",
        "Compare PCVM, posterior and rivals on held-out rows. The paper's sparse MAP, the averaged MAP, its "
        "ten vectors, a posterior, a tuned SVC and logistic regression are fitted on several stratified "
        "splits of a table.",
        stopped="the splits that were finished stay in the output folder",
    )
    compare.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE.csv",
        help="a table with a label column (default: Wisconsin breast cancer)",
    )
    _add_table(compare)
    compare.add_argument(
        "--test-size",
        type=float,
        metavar="SHARE|ROWS",
        help="held-out share (below 1) or number of rows (default: 0.3; for the example all but 120 rows)",
    )
    for name, default, what in (
        ("splits", 10, "stratified splits"),
        ("posteriors", None, "splits on which the posterior is sampled too (default: 3, or 1 for "),
        ("draws", 500, "draws, and tuning steps, per chain"),
        ("chains", 4, "chains"),
    ):
        said = f"{what} (default: {default})" if default else f"{what}several classes)"
        compare.add_argument(f"--{name}", type=int, default=default, metavar="N", help=said)
    compare.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="output folder (default: pcvm-compare, or pcvm-compare-2, ... where that holds something else)",
    )


def _add_reproduce(commands: Any) -> None:
    reproduce = _command(
        commands,
        "reproduce",
        "experiments.commands",
        "Run an experiment of the papers, or ALL of them. Every finished job is written at once: stop it "
        "with Ctrl-C, and the same command goes on. With ALL the exit code is 1 if a job failed.",
        stopped="what was finished stays in the output folder, and the same command goes on",
    )
    reproduce.add_argument(
        "name", metavar="NAME", help="such as chen2009-table1, see `pcvm list`; or ALL"
    )
    reproduce.add_argument(
        "--sets", nargs="+", metavar="SET", help="data sets (default: the experiment's)"
    )
    reproduce.add_argument(
        "--classifiers",
        nargs="+",
        metavar="NAME",
        help="of `pcvm list --classifiers`, or module:attribute for a scikit-learn estimator of your own; "
        "+NAME adds to the experiment's (default: the experiment's)",
    )
    reproduce.add_argument(
        "--repeats", type=int, metavar="N", help="realisations scored (default: the paper's)"
    )
    reproduce.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="processes (default: 1)"
    )
    reproduce.add_argument(
        "--seed", type=int, default=0, metavar="N", help="random seed (default: 0)"
    )
    reproduce.add_argument(
        "--out", type=Path, metavar="FOLDER", help="output folder (default: pcvm-NAME)"
    )
    reproduce.add_argument(
        "--small",
        action="store_true",
        help="a first look: fewer rows, and fewer sets and classifiers where none are named",
    )
    reproduce.add_argument(
        "--dask", metavar="ADDRESS", help="send the jobs to the Dask scheduler at this address"
    )
    reproduce.add_argument(
        "--download",
        action="store_true",
        help="fetch missing sets from openml.org where it has them",
    )
    reproduce.add_argument("--retry", action="store_true", help="run jobs again that have failed")


def _add_list(commands: Any) -> None:
    listing = _command(
        commands, "list", "experiments.commands", "Name the experiments, data sets or classifiers."
    )
    kind = listing.add_mutually_exclusive_group()
    kind.add_argument("--sets", action="store_true", help="the data sets, and which are here")
    kind.add_argument("--classifiers", action="store_true", help="the classifiers")


def _add_report(commands: Any) -> None:
    report = _command(
        commands,
        "report",
        "experiments.commands",
        "Write the report of a run, finished or not: csv, Markdown, HTML, pictures.",
        stopped="the report was not finished",
    )
    report.add_argument("folder", type=Path, metavar="FOLDER", help="of `pcvm reproduce`")
    report.add_argument(
        "--experiment",
        metavar="NAME",
        help="another table of the same run, such as chen2009-table3 (default: that of the run)",
    )
    report.add_argument(
        "--out", type=Path, metavar="FOLDER", help="where to write (default: FOLDER/report)"
    )
