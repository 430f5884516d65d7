"""Where EM stands and ends, for one score or several."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pcvm_pymc.core.pieces.probit import Array

__all__ = ["EMState"]


@dataclass(frozen=True)
class EMState:
    """A point of the iteration; shapes as for `EMResult`."""

    weight: Array
    bias: Any
    latent: Array
    width: Any
    log_posterior: float

    @property
    def n_active(self) -> int:
        """Number of weights that are not zero."""
        return int(np.count_nonzero(self.weight))
