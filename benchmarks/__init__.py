"""Measurements beside other libraries and on machines that are not at hand."""
