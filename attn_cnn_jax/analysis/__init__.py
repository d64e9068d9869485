"""Attention of trained networks: maps, numbers of heads, figures, and a viewer."""
