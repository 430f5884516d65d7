"""Mathematics of the family in NumPy and SciPy: arrays in, frozen dataclasses out, no PyMC."""
