"""Draw the pictures of the first page and of a tutorial: ``uv run python docs/draw.py``."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pcvm_pymc import PCVMClassifier, find_map_em, pcvm_model, plots, project, sample
from pcvm_pymc.experiments.datasets import ripley_mixture

FOLDER = Path(__file__).with_name("_static")


def keep(figure: Any, name: str) -> None:
    """Write a picture in few colours."""
    figure.savefig(FOLDER / name, dpi=80)
    Image.open(FOLDER / name).convert("RGB").quantize(96).save(FOLDER / name, optimize=True)


def surface() -> Any:
    """Draw a mode and a posterior of Ripley's mixture."""
    X, label = ripley_mixture(150, random_state=8)
    y = np.where(label > 0, "class 1", "class 0")
    model = pcvm_model(X, y, width=0.5)
    mode = find_map_em(model, progressbar=False)
    posterior = sample(model, random_seed=1, progressbar=False)
    return plots.plot_decision_surface(mode, posterior, X, y, resolution=150)


def path() -> Any:
    """Draw the choice of a number of vectors."""
    X, y = ripley_mixture(120, random_state=0)
    full = PCVMClassifier(width=0.6).fit(X, y)
    drawn = project(full, X, y, random_state=1).plot()
    return getattr(drawn, "figure", drawn)


if __name__ == "__main__":
    keep(surface(), "surface.png")
    keep(path(), "path.png")
