"""What the runs have learned, as numbers, figures and tables."""
