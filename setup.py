"""The packages of the wheel: `configs/` is one inside ours; pyproject cannot say so."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["attn_cnn_jax*"]), "attn_cnn_jax.configs"],
    package_dir={"attn_cnn_jax.configs": "configs"},
)
