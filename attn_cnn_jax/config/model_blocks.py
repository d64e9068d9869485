"""`config.model` of every network: its fields are the constructor's arguments."""

from ml_collections import ConfigDict, FieldReference

from attn_cnn_jax.models.attention import ATTENTIONS, BUILT_IN

# The report's own layers stand in a block of its own.
_REPORT_BLOCK = {
    "activation": "relu",
    "dropout_rate": 0.0,
    "norm_epsilon": 1e-5,
    "attention_dense": False,
}

RESNETS = ("resnet10", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
RESNETS_AS_ATTENTION = tuple(f"{name}_as_attention" for name in RESNETS)
IMAGENET_SANS = ("san10", "san15", "san19")
VISION_TRANSFORMERS = ("report", "standard")


def self_attention(attention: str) -> ConfigDict:
    """Return the paper's network at full size, with the named attention in every layer.

    `num_heads` may also be a tuple, one number for each layer, 0 for none. A name of
    the package that ends in "_report" comes with the report's block around it.
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
            "query_chunk": 0,
            "remat": False,
            "compute_dtype": "float32",
            "attention": {
                "name": attention,
                "dropout_rate": 0.1,
                **ATTENTIONS[attention].fields,
            },
        }
    )
    if attention in BUILT_IN and attention.endswith("_report"):
        model.update(_REPORT_BLOCK)
    if "position_dim" in model.attention:
        model.attention.position_dim = model.get_oneway_ref("width")
    return model


def resnet(name: str) -> ConfigDict:
    """Return the ResNet of the named depth for 32 x 32 images.

    Convolutions start as PyTorch's ("torch") or by He et al. ("kaiming").
    """
    fields = {"width": 64, "initialization": "torch", "compute_dtype": "float32"}
    return ConfigDict({"name": name, **fields})


def resnet_as_attention(name: str) -> ConfigDict:
    """Return a ResNet with attention layers, nine heads for a 3 x 3 kernel.

    `name` is that of `RESNETS_AS_ATTENTION`; `encoding` "quadratic" or "learned".
    """
    fields = {"width": 64, "encoding": "quadratic", "compute_dtype": "float32"}
    return ConfigDict({"name": name, **fields})


def san(attention: str, name: str = "san") -> ConfigDict:
    """Return the report's SAN, "pairwise" or "patchwise", for 32 x 32 images.

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
    """Return the report's hierarchical SAN, "pairwise" or "patchwise".

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
    """Return the report's Vision Transformer, or the "standard" one on the same stem.

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
            "remat": False,
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
