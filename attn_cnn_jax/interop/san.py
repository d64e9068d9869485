"""Rules for the official SAN and for the report's hierarchical one."""

from attn_cnn_jax.interop.layouts import POINTWISE, Rule, dense, norm


def _bottleneck(ours: str, theirs: str) -> tuple[Rule, ...]:
    attention, sam = f"{ours}attention", f"{theirs}sam"
    return (
        *norm(f"{ours}norm_1", f"{theirs}bn1"),
        *dense(f"{attention}/query", f"{sam}.conv1", POINTWISE),
        *dense(f"{attention}/key", f"{sam}.conv2", POINTWISE),
        *dense(f"{attention}/value", f"{sam}.conv3", POINTWISE),
        *dense(f"{attention}/position", f"{sam}.conv_p", POINTWISE),
        *norm(f"{attention}/relation_norm", f"{sam}.conv_w.0"),
        *dense(f"{attention}/relation_dense", f"{sam}.conv_w.2", POINTWISE),
        *norm(f"{attention}/hidden_norm", f"{sam}.conv_w.3"),
        *dense(f"{attention}/weight_dense", f"{sam}.conv_w.5", POINTWISE),
        *norm(f"{ours}norm_2", f"{theirs}bn2"),
        *dense(f"{ours}expand", f"{theirs}conv", POINTWISE),
    )


def _pointwise(ours: str, conv: str, bn: str) -> tuple[Rule, ...]:
    return *dense(f"{ours}_conv", conv, POINTWISE), *norm(f"{ours}_norm", bn)


NETWORK = (
    *_pointwise("stem", "conv_in", "bn_in"),
    *_pointwise(r"stage_(\d)", r"conv\1", r"bn\1"),
    *_bottleneck(r"stage_(\d)_block_(\d+)/", r"layer\1.\2."),
    *dense("classifier", "fc"),
)
HIERARCHICAL = (
    *_pointwise("stem", "conv_in", "bn_in"),
    *_pointwise(r"pass_(\d+)", r"conv\1", r"bn\1"),
    *_bottleneck(r"block_(\d+)/", r"enc_layer.\1."),
    *dense("classifier", "fc"),
)
BOTTLENECK = _bottleneck("", "")
