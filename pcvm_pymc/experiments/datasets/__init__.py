"""Data sets of the papers: one registry, generated, from scikit-learn, OpenML or a folder.

None of the real sets is part of this package. `load` reads them from a folder of csv files (last
column ``target``, an empty entry is a missing value, ``*_splits.npz`` with the arrays ``train``,
``test`` and ``realisation``), and says where a set comes from when it is not there.
"""

from pcvm_pymc.experiments.datasets.files import data_folder, without_folder
from pcvm_pymc.experiments.datasets.generators import (
    BUMPY_SCALES,
    OVERLAP_MEAN,
    RIPLEY_CENTRES,
    RIPLEY_VARIANCE,
    bumpy,
    overclass,
    overlap,
    overlap_classes,
    relevance,
    ringnorm,
    ripley_mixture,
    spiral,
    twonorm,
    waveform,
)
from pcvm_pymc.experiments.datasets.loading import available, fetch, load, random_splits
from pcvm_pymc.experiments.datasets.registry import SOURCES, Dataset, Source, describe, source_of

__all__ = [
    "BUMPY_SCALES",
    "OVERLAP_MEAN",
    "RIPLEY_CENTRES",
    "RIPLEY_VARIANCE",
    "SOURCES",
    "Dataset",
    "Source",
    "available",
    "bumpy",
    "data_folder",
    "describe",
    "fetch",
    "load",
    "overclass",
    "overlap",
    "overlap_classes",
    "random_splits",
    "relevance",
    "ringnorm",
    "ripley_mixture",
    "source_of",
    "spiral",
    "twonorm",
    "waveform",
    "without_folder",
]
