"""Type-II maximum likelihood."""
