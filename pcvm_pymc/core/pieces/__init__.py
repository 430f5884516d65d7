"""The pieces that a system is put together from: likelihoods, priors, kernels, signs, bases."""
