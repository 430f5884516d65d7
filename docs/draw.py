"""Draw the picture of the first page: ``uv run python docs/draw.py``."""

from pathlib import Path

import numpy as np
from PIL import Image

from pcvm_pymc import find_map_em, pcvm_model, plots, sample
from pcvm_pymc.experiments.datasets import ripley_mixture

PATH = Path(__file__).with_name("_static") / "surface.png"


def main() -> None:
    """Fit Ripley's mixture, draw it, and keep the picture in few colours."""
    X, label = ripley_mixture(150, random_state=8)
    y = np.where(label > 0, "class 1", "class 0")
    model = pcvm_model(X, y, width=0.5)
    figure = plots.plot_decision_surface(
        find_map_em(model, progressbar=False),
        sample(model, random_seed=1, progressbar=False),
        X,
        y,
        resolution=150,
    )
    figure.savefig(PATH, dpi=80)
    Image.open(PATH).convert("RGB").quantize(96).save(PATH, optimize=True)


if __name__ == "__main__":
    main()
