"""The commands of `python -m attn_cnn_jax.theory`: a module each, flags and `main`."""
