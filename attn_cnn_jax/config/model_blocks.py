"""`config.model` of every network: its fields are the constructor's arguments."""

from typing import Any

from ml_collections import ConfigDict, FieldReference

_QUADRATIC = {"center_std": 2.0, "spread_std": 0.01}

# Fields of an attention layer beside its `dropout_rate`, by the name of the variant.
# A variant of your own adds its entry here and in `models.attention.ATTENTIONS`.
ATTENTION_FIELDS: dict[str, dict[str, Any]] = {
    "quadratic_isotropic": _QUADRATIC,
    "quadratic_nonisotropic": _QUADRATIC,
    "learned_wo_content": {"max_position": 16, "position_dim": 400},
    "learned_w_content": {"max_position": 16},
    "learned_w_content_report": {
        "max_position": 16,
        "project_values": False,
        "transposed": False,
    },
    "learned_query_position": {"max_position": 16},
    "learned_w_content_v1": {"max_position": 16, "position_dim": 400},
    "multi_head": {},
}
# What the report's own layer changes in the block around it.
_REPORT_BLOCK = {
    "activation": "relu",
    "dropout_rate": 0.0,
    "norm_epsilon": 1e-5,
    "attention_dense": False,
}

RESNETS = ("resnet10", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
IMAGENET_SANS = ("san10", "san15", "san19")
VISION_TRANSFORMERS = ("report", "standard")


def self_attention(attention: str) -> ConfigDict:
    """The paper's network at full size, with the named attention in every layer.

    `num_heads` may also be a tuple, one number for each layer, 0 for none.
    "learned_w_content_report" comes with the report's block around it.
    """
    model = ConfigDict(
        {
            "name": "self_attention",
            "patch_size": 2,
            "width": 400,
            "num_layers": 6,
            "num_heads": FieldReference(9, field_type=object),  # of either type
            "mlp_dim": 512,
            "activation": "gelu",
            "dropout_rate": 0.1,
            "norm_epsilon": 1e-12,
            "attention_dense": True,
            "share_weights": False,
            "compute_dtype": "float32",
            "attention": {
                "name": attention,
                "dropout_rate": 0.1,
                **ATTENTION_FIELDS[attention],
            },
        }
    )
    if attention == "learned_w_content_report":
        model.update(_REPORT_BLOCK)
    if "position_dim" in model.attention:
        model.attention.position_dim = model.get_oneway_ref("width")
    return model


def resnet(name: str) -> ConfigDict:
    """The ResNet of the named depth for 32 x 32 images."""
    return ConfigDict({"name": name, "width": 64, "compute_dtype": "float32"})


def san(attention: str, name: str = "san") -> ConfigDict:
    """SAN with "pairwise" or "patchwise" attention: the report's, for 32 x 32 images.

    `name` "san10", "san15" or "san19": the official networks for 224 x 224 images.
    """
    model = ConfigDict(
        {"name": name, "attention": attention, "compute_dtype": "float32"}
    )
    if name not in IMAGENET_SANS:
        model.update(
            widths=(64, 256, 512, 1024),
            num_blocks=(2, 1, 2, 4),
            kernel_sizes=(3, 3, 3, 3),
            projection_bias=True,
        )
    return model


def san_hierarchical(attention: str) -> ConfigDict:
    """The report's hierarchical SAN, "pairwise" or "patchwise".

    As published: attention reads the raw map (`pre_activation` of False), one sweep
    over the blocks in a pass. The block that was meant has `pre_activation=True`; the
    authors' first version also `num_sweeps=2`.
    """
    return ConfigDict(
        {
            "name": "san_hierarchical",
            "attention": attention,
            "width": 256,
            "num_passes": 4,
            "num_blocks": 2,
            "num_sweeps": 1,
            "kernel_size": 3,
            "projection_bias": False,
            "pre_activation": False,
            "compute_dtype": "float32",
        }
    )


def vit(kind: str = "report") -> ConfigDict:
    """The report's Vision Transformer, or the "standard" one on the same stem.

    As published: a random class token (`class_token="learned"` is the sound form) and
    residuals that add what was normalised (`normalized_residual=False`).
    """
    if kind not in VISION_TRANSFORMERS:
        raise ValueError(f"{kind!r} is not one of {', '.join(VISION_TRANSFORMERS)}")
    model = ConfigDict(
        {
            "name": "vit",
            "stem_width": 64,
            "patch_size": 2,
            "width": 400,
            "num_layers": 6,
            "num_heads": 9,
            "head_dim": 400,
            "mlp_dim": 512,
            "activation": "gelu",
            "class_token": "random",
            "normalized_residual": True,
            "projection_bias": False,
            "final_norm": False,
            "readout": "mean",
            "share_weights": False,
            "initialization": "torch",
            "dropout_rate": 0.0,
            "attention_dropout_rate": 0.1,
            "norm_epsilon": 1e-5,
            "compute_dtype": "float32",
        }
    )
    if kind == "standard":
        model.update(
            activation="gelu_tanh",
            class_token="learned",
            normalized_residual=False,
            projection_bias=True,
            final_norm=True,
            readout="token",
            initialization="google",
            dropout_rate=0.1,
            norm_epsilon=1e-6,
        )
    return model
