"""ResNet-18, the convolutional baseline: Table 1, row 1.

python -m attn_cnn_jax.main --config=configs/resnet18.py

11,173,962 parameters; accuracy .938 in the paper, .946 in the report.
"""

from ml_collections import ConfigDict

from attn_cnn_jax.config import base_config, resnet, with_options


def get_config(options: str = "") -> ConfigDict:
    """The row; options: cosine (the report's schedule), cifar10, cifar100, digits."""
    config = base_config()
    config.model = resnet("resnet18")
    # Published as drops at epochs 80, 150 and 250, taken one epoch early by its code.
    config.schedule.update(name="multistep", drop_epochs=(79, 149, 249))
    cosine = {"schedule": {"name": "cosine", "warmup_epochs": 10.0}}
    return with_options(config, options, {"cosine": cosine})
