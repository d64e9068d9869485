"""Theorem 1 as code: what attention has to be to compute a convolution."""
