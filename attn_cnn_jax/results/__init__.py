"""Runs held against the papers: published numbers, tables beside them, curves."""
