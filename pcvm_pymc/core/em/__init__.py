"""EM for the posterior mode, with one score per row or several, and a dense or streamed design."""

from pcvm_pymc.core.em.machine import EMState, fit_em, initial_state, iterate, log_posterior
from pcvm_pymc.core.em.options import EMOptions, Start
from pcvm_pymc.core.em.widths import FeatureWidthMoves, WidthMoves
