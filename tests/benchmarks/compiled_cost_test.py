"""Kernels, bytes and operations read from HLO texts, against counts by hand."""

import jax
import jax.numpy as jnp
import pytest

from attn_cnn_jax.models.flops import program_flops
from benchmarks import compiled_cost, compiled_hlo

# Ten units a second of everything, so that times can be told by hand.
GPU = compiled_cost.Gpu(
    bandwidth=10.0,
    flops=10.0,
    float32_flops=5.0,
    integer_ops=10.0,
    product_efficiency=0.5,
    bandwidth_efficiency=0.8,
    gap=1.0,
)


def kernels_of(text: str) -> list[compiled_cost.Kernel]:
    return compiled_cost.kernels(compiled_hlo.read(text))


def only_kernel(text: str) -> compiled_cost.Kernel:
    (kernel,) = kernels_of(text)
    return kernel


def test_a_product_of_the_library_without_its_scratch_memory():
    kernel = only_kernel("""HloModule step
ENTRY %main (a: bf16[100,64], k: bf16[32,64]) -> bf16[100,32] {
  %a = bf16[100,64]{1,0} parameter(0)
  %k = bf16[32,64]{1,0} parameter(1)
  %product = (bf16[100,32]{1,0}, s8[33554432]{0}) custom-call(%a, %k), custom_call_target="__cublas$lt$matmul", metadata={op_name="jit(step)/dense/dot_general"}, backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["1"],"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]}}}
  ROOT %result = bf16[100,32]{1,0} get-tuple-element(%product), index=0
}
""")  # noqa: E501
    assert kernel.flops == 2 * 100 * 32 * 64
    assert kernel.bytes == 2 * (100 * 64 + 32 * 64 + 100 * 32)
    assert kernel.op_name == "jit(step)/dense/dot_general"
    assert kernel.kind == "__cublas$lt$matmul" and not kernel.float32


def test_a_product_with_itself_reads_it_once():
    kernel = only_kernel("""HloModule step
ENTRY %main (a: f32[8,8]) -> f32[8,8] {
  %a = f32[8,8]{1,0} parameter(0)
  ROOT %square = f32[8,8]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
""")  # noqa: E501
    assert kernel.bytes == 4 * (64 + 64)
    assert kernel.flops == 2 * 8**3 and kernel.float32


@pytest.mark.parametrize(
    "target,operands,result",
    [
        ("Forward", ("f32[10,8,8,3]", "f32[16,3,3,3]"), "f32[10,4,4,16]"),
        ("BackwardInput", ("f32[10,4,4,16]", "f32[16,3,3,3]"), "f32[10,8,8,3]"),
        ("BackwardFilter", ("f32[10,8,8,3]", "f32[10,4,4,16]"), "f32[16,3,3,3]"),
    ],
)
def test_a_convolution_multiplies_as_often_forward_and_backward(
    target, operands, result
):
    kernel = only_kernel(f"""HloModule step
ENTRY %main (a: {operands[0]}, b: {operands[1]}) -> {result} {{
  %a = {operands[0]}{{3,2,1,0}} parameter(0)
  %b = {operands[1]}{{3,2,1,0}} parameter(1)
  %conv = ({result}{{3,2,1,0}}, u8[4096]{{0}}) custom-call(%a, %b), window={{size=3x3 stride=2x2}}, dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$conv{target}"
  ROOT %out = {result}{{3,2,1,0}} get-tuple-element(%conv), index=0
}}
""")  # noqa: E501
    assert kernel.flops == 2 * (10 * 4 * 4 * 16) * (3 * 3 * 3)
    assert kernel.bytes == 4 * (10 * 8 * 8 * 3 + 16 * 3 * 3 * 3 + 10 * 4 * 4 * 16)
    assert kernel.float32


def test_a_fusion_reads_the_rows_that_it_gathers_and_no_operand_twice():
    kernel = only_kernel("""HloModule step
%fused (images: u8[50000,32,32,3], rows: s32[100,1], a: f32[100], b: f32[100]) -> (f32[100], f32[100,1,32,32,3]) {
  %images = u8[50000,32,32,3]{3,2,1,0} parameter(0)
  %same = u8[50000,3072]{1,0} bitcast(%images)
  %rows = s32[100,1]{1,0} parameter(1)
  %batch = u8[100,1,3072]{2,1,0} gather(%same, %rows), offset_dims={1,2}
  %floats = f32[100,1,3072]{2,1,0} convert(%batch)
  %a = f32[100]{0} parameter(2)
  %b = f32[100]{0} parameter(3)
  %sum = f32[100]{0} add(%a, %b)
  ROOT %both = (f32[100]{0}, /*index=1*/f32[100,1,3072]{2,1,0}) tuple(%sum, %floats)
}

ENTRY %main (images: u8[50000,32,32,3], rows: s32[100,1], a: f32[100]) -> f32[100] {
  %images = u8[50000,32,32,3]{3,2,1,0} parameter(0)
  %rows = s32[100,1]{1,0} parameter(1)
  %a = f32[100]{0} parameter(2)
  ROOT %fusion = (f32[100]{0}, f32[100,1,3072]{2,1,0}) fusion(%images, %rows, %a, %a), kind=kLoop, calls=%fused
}
""")  # noqa: E501
    rows, batch, vector = 4 * 100, 100 * 3072, 4 * 100
    assert kernel.bytes == batch + rows + vector + (vector + 4 * batch)
    assert kernel.flops == 0


@pytest.mark.parametrize(
    "base,read_and_written",
    [("parameter(0)", 4 * 10 + 4 * 10), ("broadcast(%zero)", 4 * 10 + 4 * 1000)],
)
def test_an_update_in_place_writes_the_update(base, read_and_written):
    """One of an array that the fusion makes writes the whole array."""
    base_of_main = "parameter(0)" if base == "parameter(0)" else "constant({...})"
    text = f"""HloModule step
%fused (all: f32[100,10], row: f32[1,10], at: s32[]) -> f32[100,10] {{
  %zero = f32[] constant(0)
  %all = f32[100,10]{{1,0}} {base}
  %row = f32[1,10]{{1,0}} parameter(1)
  %at = s32[] parameter(2)
  ROOT %updated = f32[100,10]{{1,0}} dynamic-update-slice(%all, %row, %at, %at)
}}

ENTRY %main (all: f32[100,10], row: f32[1,10], at: s32[]) -> f32[100,10] {{
  %all = f32[100,10]{{1,0}} {base_of_main}
  %row = f32[1,10]{{1,0}} parameter(1)
  %at = s32[] parameter(2)
  ROOT %fusion = f32[100,10]{{1,0}} fusion(%all, %row, %at), kind=kLoop, calls=%fused
}}
"""
    if base != "parameter(0)":
        text = text.replace("parameter(1)", "parameter(0)", 1).replace(
            "parameter(2)", "parameter(1)", 1
        )
        text = text.replace("fusion(%all, %row, %at)", "fusion(%row, %at)")
    assert only_kernel(text).bytes == read_and_written + 4  # the place


def test_a_loop_launches_its_kernels_as_often_as_it_turns():
    kernels = kernels_of("""HloModule step
%body (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %state = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = f32[8]{0} get-tuple-element(%state), index=1
  %sorted = f32[8]{0} sort(%x), dimensions={0}
  ROOT %next = (s32[], f32[8]{0}) tuple(%i, %sorted)
}

%condition (state: (s32[], f32[8])) -> pred[] {
  %state.1 = (s32[], f32[8]{0}) parameter(0)
  ROOT %go = pred[] constant(true)
}

ENTRY %main (x: f32[8]) -> (s32[], f32[8]) {
  %x.1 = f32[8]{0} parameter(0)
  %copy = f32[8]{0} copy(%x.1)
  %zero = s32[] constant(0)
  %first = (s32[], f32[8]{0}) tuple(%zero, %copy)
  ROOT %loop = (s32[], f32[8]{0}) while(%first), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"5"}}
}
""")  # noqa: E501
    assert [(kernel.kind, kernel.times) for kernel in kernels] == [
        ("copy", 1),
        ("sort", 5),
    ]
    assert all(kernel.bytes == 2 * 4 * 8 for kernel in kernels)


def test_random_bits_count_and_other_integers_hardly():
    """A rotation is three operations of HLO and one of the GPU."""
    kernel = only_kernel("""HloModule step
%fused (x: u32[6]) -> u32[6] {
  %x = u32[6]{0} parameter(0)
  %left = u32[6]{0} shift-left(%x, %x)
  %right = u32[6]{0} shift-right-logical(%x, %x)
  %rotated = u32[6]{0} or(%left, %right)
  %wide = s64[6]{0} convert(%x)
  %index = s64[6]{0} add(%wide, %wide)
  ROOT %sum = u32[6]{0} xor(%rotated, %x)
}

ENTRY %main (x: u32[6]) -> u32[6] {
  %x = u32[6]{0} parameter(0)
  ROOT %fusion = u32[6]{0} fusion(%x), kind=kLoop, calls=%fused
}
""")
    assert kernel.integer_ops == 2 * 6


@pytest.mark.parametrize(
    "bytes_moved,flops,float32,integer_ops,ideal,mid",
    [
        (80, 10, False, 0, 8.0, 10.0),  # by its memory
        (10, 80, False, 0, 8.0, 16.0),  # by its products
        (10, 80, True, 0, 16.0, 32.0),  # which are half as fast in float32
        (10, 10, False, 80, 8.0, 8.0),  # by its random bits
    ],
)
def test_a_kernel_is_bound_by_its_slowest_part(
    bytes_moved, flops, float32, integer_ops, ideal, mid
):
    kernel = compiled_cost.Kernel(
        "op", "fusion", bytes_moved, flops, float32, integer_ops, times=3
    )
    assert kernel.ideal_seconds(GPU) == pytest.approx(3 * ideal)
    assert kernel.mid_seconds(GPU) == pytest.approx(3 * (mid + GPU.gap))


def test_what_a_compiler_wrote_is_read():
    """Products as the tracer counts them, whatever they were fused with."""

    def function(x, k, filters):
        y = jax.lax.conv_general_dilated(
            x, filters, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.einsum("bhwc,cd->bhwd", y, k)

    shapes = [(2, 8, 8, 3), (16, 5), (3, 3, 3, 16)]
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    text = jax.jit(function).lower(*arrays).compile().as_text()
    found = kernels_of(text)
    assert sum(k.times * k.flops for k in found) == program_flops(function, *arrays)
    assert all(kernel.float32 for kernel in found if kernel.flops)


def test_a_text_without_a_program_is_refused():
    with pytest.raises(ValueError, match="no entry computation"):
        compiled_hlo.read("HloModule step")
