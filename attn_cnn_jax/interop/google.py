"""Rules for google-research/vision_transformer (Flax: "/" joins its names)."""

from collections.abc import Iterator

from attn_cnn_jax.interop.layouts import SAME, Layout, Rule

# Their arrays have axes of length 1; their kernel of the patches is a convolution's.
_ROW = Layout(lambda a: a[None], lambda t, shape: t.reshape(shape))
_TOKEN = Layout(lambda a: a[None, None], lambda t, shape: t.reshape(shape))


def _both(ours: str, theirs: str, leaves: tuple[str, str]) -> tuple[Rule, ...]:
    return tuple((f"{ours}/{leaf}", f"{theirs}/{leaf}", SAME) for leaf in leaves)


def _dense(ours: str, theirs: str) -> tuple[Rule, ...]:
    return _both(ours, theirs, ("kernel", "bias"))


def _norm(ours: str, theirs: str) -> tuple[Rule, ...]:
    return _both(ours, theirs, ("scale", "bias"))


def _block(ours: str, theirs: str) -> Iterator[Rule]:
    attention = f"{theirs}MultiHeadDotProductAttention_0"
    yield from _norm(f"{ours}attention_norm", f"{theirs}LayerNorm_0")
    for name in ("query", "key", "value"):
        yield from _dense(f"{ours}attention/{name}", f"{attention}/{name}")
    yield from _dense(f"{ours}attention/output", f"{attention}/out")
    yield from _norm(f"{ours}mlp_norm", f"{theirs}LayerNorm_1")
    yield from _dense(f"{ours}mlp_in", f"{theirs}MlpBlock_0/Dense_0")
    yield from _dense(f"{ours}mlp_out", f"{theirs}MlpBlock_0/Dense_1")


def network(patch_size: int, share_weights: bool) -> tuple[Rule, ...]:
    """Return the rules of a network; a shared block is their first one."""
    ours, theirs = r"block_(\d+)/", r"Transformer/encoderblock_\1/"
    if share_weights:
        ours, theirs = "block/", "Transformer/encoderblock_0/"
    convolution = Layout(
        lambda a: a.reshape(patch_size, patch_size, -1, a.shape[-1]),
        lambda t, shape: t.reshape(shape),
    )
    return (
        ("embedding/kernel", "embedding/kernel", convolution),
        ("embedding/bias", "embedding/bias", SAME),
        ("class_token", "cls", _TOKEN),
        ("positions", "Transformer/posembed_input/pos_embedding", _ROW),
        *_block(ours, theirs),
        *_norm("final_norm", "Transformer/encoder_norm"),
        *_dense("classifier", "head"),
    )


BLOCK = tuple(_block("", ""))
