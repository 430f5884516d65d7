"""Hamiltonian Monte Carlo from the posterior of a kernel machine, for any likelihood and weighted rows.

Density, kernel with adaptation, and moves of an unknown width, in a file each. Nothing here is in the papers,
which stop at the posterior's mode.
"""

from pcvm_pymc.core.hamiltonian.chains import STATISTICS, HamiltonianChains
from pcvm_pymc.core.hamiltonian.density import LogPosterior
