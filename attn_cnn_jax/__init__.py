"""When does self-attention compute a convolution? Models, training and analysis."""

__version__ = "0.1.0"
