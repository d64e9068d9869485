"""Which axis of a parameter counts the heads of an attention layer."""

from collections.abc import Mapping

# By path in the layer. These parameters are a part for each head: the layer without a
# head is the layer without its parts.
HEAD_AXES: Mapping[str, int] = {
    "centers": 0,
    "spreads": 0,
    "row_keys": 1,
    "col_keys": 1,
    "query_kernel": 1,
    "query_bias": 0,
    "key_kernel": 1,
    "key_bias": 0,
    "value_kernel": 0,
    "value_projection_kernel": 0,
}

# Also where heads share the width or the number of heads of all layers. A head for
# which all of these are 0 adds nothing to the layer's output.
VALUE_AXES: Mapping[str, int] = {
    "value_kernel": 0,
    "value/kernel": 1,
    "value/bias": 0,
}
