"""Write the table of a run of test_rvm.py: uv run python benchmarks/rvm_table.py rvm.json."""

import json
import sys
from pathlib import Path

PROGRAMS = ("sequential", "batch", "fastrvm", "sklearn_rvm")
ERROR = {"sinc": "RMSE", "friedman2": "RMSE", "ripley": "error"}


def cells(path):
    """Return {(problem, n): {program: text}}."""
    out = {}
    for each in json.loads(Path(path).read_text())["benchmarks"]:
        program = each["name"].removeprefix("test_").split("[")[0]
        parameters, extra = each["params"], each["extra_info"]
        error = extra["error"]
        shown = f"{100 * error:.2f} %" if parameters["name"] == "ripley" else f"{error:.3g}"
        out.setdefault((parameters["name"], parameters["n"]), {})[program] = (
            f"{each['stats']['median']:.3g} s; {extra['log_evidence']:.2f}; "
            f"{extra['vectors']}; {shown}"
        )
    return out


def table(path):
    """Return the table in Markdown."""
    lines = [
        "| problem | N | " + " | ".join(PROGRAMS) + " |",
        "| --- " * (len(PROGRAMS) + 2) + "|",
    ]
    for (name, n), row in sorted(cells(path).items()):
        columns = [row.get(program, "") for program in PROGRAMS]
        lines.append(f"| {name} | {n} | " + " | ".join(columns) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(sys.argv[1]))
