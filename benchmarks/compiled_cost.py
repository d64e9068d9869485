"""What the kernels of an optimised HLO module move and multiply, and how long it takes.

Bytes and operations are read from the module. Times are estimates: a kernel is bound by
its memory, by its matrix products, or by the integer arithmetic of random bits; what
else it computes is taken to hide behind them.
"""

import dataclasses
import math
import re
from collections.abc import Iterator

from benchmarks.compiled_hlo import Computation, Instruction, Module, Shape

# What names a place in memory, or runs other computations, and is no kernel itself.
_NO_KERNEL = {
    "after-all",
    "bitcast",
    "call",
    "conditional",
    "constant",
    "get-tuple-element",
    "opt-barrier",
    "parameter",
    "partition-id",
    "replica-id",
    "tuple",
    "while",
}
_SAME_VALUES = {"bitcast", "reshape"}
_READ_A_PART = {"dynamic-slice", "gather", "slice"}
_WRITE_A_PART = {"dynamic-update-slice": 1, "scatter": 2}  # which operand is written
# An `or` and the left shift beside it are left out: with a right shift they rotate, in
# one operation of the GPU.
_INTEGER_OPERATIONS = {
    "add",
    "and",
    "multiply",
    "not",
    "shift-right-arithmetic",
    "shift-right-logical",
    "subtract",
    "xor",
}


@dataclasses.dataclass(frozen=True)
class Gpu:
    """How fast kernels can be: at best ("ideal") and as a rule ("mid")."""

    bandwidth: float  # bytes/s that a large copy reaches
    flops: float  # FLOP/s that a large product of 16-bit numbers reaches
    float32_flops: float  # ... and of float32, with the tensor cores (TF32)
    integer_ops: float  # 32-bit operations/s
    product_efficiency: float  # of `flops`, as a rule
    bandwidth_efficiency: float
    gap: float  # seconds between two kernels


# What large copies and products of 8192 x 8192 reach of the vendor's 4.8 TB/s and 989
# TFLOP/s. TF32 is half as fast; 132 cores start 64 integer operations at a time. The
# efficiencies and the gap are assumed, not measured.
GPUS = {
    "h200": Gpu(
        bandwidth=4.3e12,
        flops=790e12,
        float32_flops=395e12,
        integer_ops=132 * 64 * 1.98e9,
        product_efficiency=0.7,
        bandwidth_efficiency=0.8,
        gap=1.5e-6,
    )
}


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A launch of one kernel, `times` in a step."""

    op_name: str  # of the traced program
    kind: str  # the instruction's, or the library's call
    bytes: int  # read and written
    flops: int  # of matrix products and convolutions, 2 x multiply-adds
    float32: bool  # whether these are of float32
    integer_ops: int
    times: int

    def ideal_seconds(self, gpu: Gpu) -> float:
        """Return the time of all launches that the GPU's limits alone take."""
        return self.times * max(
            self.bytes / gpu.bandwidth,
            self.flops / self._peak(gpu),
            self.integer_ops / gpu.integer_ops,
        )

    def mid_seconds(self, gpu: Gpu) -> float:
        """Return the time of all launches at usual efficiency, gaps included."""
        slowest = max(
            self.bytes / (gpu.bandwidth * gpu.bandwidth_efficiency),
            self.flops / (self._peak(gpu) * gpu.product_efficiency),
            self.integer_ops / gpu.integer_ops,
        )
        return self.times * (slowest + gpu.gap)

    def _peak(self, gpu: Gpu) -> float:
        return gpu.float32_flops if self.float32 else gpu.flops


def kernels(module: Module) -> list[Kernel]:
    """Return the kernels that a run of the module launches, in the text's order.

    A loop of unknown length counts as one turn; of a conditional all branches count.
    """
    return list(_kernels(module, module.entry, 1))


def _kernels(module: Module, name: str, times: int) -> Iterator[Kernel]:
    computation = module.computations[name]
    for instruction in computation.instructions.values():
        opcode = instruction.opcode
        if opcode in ("call", "conditional", "while"):
            trips = re.search(
                r'"known_trip_count":\{"n":"(\d+)"', instruction.attributes
            )
            turns = times * int(trips[1]) if trips else times
            for called in instruction.called():
                yield from _kernels(module, called, turns)
        elif opcode not in _NO_KERNEL and not opcode.endswith("-done"):
            yield _kernel(module, computation, instruction, times)


def _kernel(
    module: Module, computation: Computation, instruction: Instruction, times: int
) -> Kernel:
    target = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
    products = list(_products(module, computation, instruction))
    return Kernel(
        instruction.op_name,
        target[1] if target else instruction.opcode,
        _moved_bytes(module, computation, instruction),
        sum(flops for flops, _ in products),
        any(float32 for _, float32 in products),
        sum(part.results[0].elements for part in _integer_parts(module, instruction)),
        times,
    )


def _products(
    module: Module, computation: Computation, instruction: Instruction
) -> Iterator[tuple[int, bool]]:
    """Find FLOPs of each product in an instruction, and whether it is of float32."""
    if instruction.opcode == "fusion":
        for name in instruction.called():
            fused = module.computations[name]
            for part in fused.instructions.values():
                yield from _products(module, fused, part)
        return
    operands = [
        shape
        for name in instruction.operands
        for shape in computation.instructions[name].results
    ]
    flops = _flops(instruction, operands)
    if flops:
        yield flops, any(shape.dtype == "f32" for shape in operands[:2])


def _flops(instruction: Instruction, operands: list[Shape]) -> int:
    """Return 2 x multiply-adds of a product or convolution, else 0.

    The multiply-adds with the padding of a convolution count.
    """
    attributes = instruction.attributes
    if instruction.opcode == "dot" or "__cublas$" in attributes:
        contracted = instruction.numbers("lhs_contracting_dims") or instruction.numbers(
            "lhs_contracting_dimensions"
        )
        depth = math.prod(operands[0].sizes[axis] for axis in contracted)
        return 2 * instruction.results[0].elements * depth
    if instruction.opcode != "convolution" and "__cudnn$conv" not in attributes:
        return 0
    # The three arrays by their part in the forward convolution.
    _, kernel, output = operands[0], operands[1], instruction.results[0]
    if "convBackwardInput" in attributes:
        output = operands[0]
    elif "convBackwardFilter" in attributes:
        kernel, output = instruction.results[0], operands[1]
    labels = re.search(r"dim_labels=\w+_(\w+)->\w+", attributes)
    assert labels, f"{instruction.name} does not say which axis is which"
    features = kernel.sizes[labels[1].index("o")]
    return 2 * output.elements * (kernel.elements // features)


def _integer_parts(module: Module, instruction: Instruction) -> Iterator[Instruction]:
    """Find the integer arithmetic of a fusion; each element is computed once."""
    if instruction.opcode == "fusion":
        for name in instruction.called():
            for part in module.computations[name].instructions.values():
                if part.opcode in _INTEGER_OPERATIONS:
                    if part.results[0].dtype in ("s32", "u32"):
                        yield part


def _moved_bytes(
    module: Module, computation: Computation, instruction: Instruction
) -> int:
    """Return the bytes that a kernel reads, each operand once, and writes.

    Of an operand that is sliced or gathered from, only what is taken counts; of one
    that is updated in place, what is written. Scratch memory of libraries is left out.
    """
    if instruction.opcode == "fusion":
        (name,) = instruction.called()
        fused = module.computations[name]
        read: dict[str, int] = {}
        for number, operand in enumerate(instruction.operands):
            parts = _read_bytes(fused, fused.parameter(number))
            read[operand] = max(parts, read.get(operand, 0))
        written = (_written_bytes(fused, root) for root in _roots(fused))
        return sum(read.values()) + sum(written)
    results = list(instruction.results)
    if instruction.opcode == "custom-call" and len(results) > 1:
        results = [shape for shape in results if shape.dtype not in ("s8", "u8")]
    if instruction.opcode in _READ_A_PART:
        return 2 * results[0].bytes
    if instruction.opcode in _WRITE_A_PART:
        update = instruction.operands[_WRITE_A_PART[instruction.opcode]]
        return 2 * computation.instructions[update].results[0].bytes
    read_whole = sum(
        shape.bytes
        for name in set(instruction.operands)
        for shape in computation.instructions[name].results
    )
    return read_whole + sum(shape.bytes for shape in results)


def _read_bytes(fused: Computation, value: Instruction) -> int:
    """Return what a fusion reads of a value: all, or the parts that it uses."""
    whole = sum(shape.bytes for shape in value.results)
    parts = 0
    for user in fused.users(value.name):
        if user.opcode in _SAME_VALUES:
            parts += _read_bytes(fused, user)
        elif user.opcode in _READ_A_PART and user.operands[0] == value.name:
            parts += user.results[0].bytes
        elif user.opcode not in _WRITE_A_PART or user.operands[0] != value.name:
            return whole
    return min(parts, whole)


def _roots(fused: Computation) -> list[Instruction]:
    root = fused.instructions[fused.root]
    if root.opcode != "tuple":
        return [root]
    return [fused.instructions[name] for name in root.operands]


def _written_bytes(fused: Computation, root: Instruction) -> int:
    """Return what a fusion writes of a result; a parameter is updated in place."""
    root = _origin(fused, root)
    if root.opcode in _WRITE_A_PART:
        base = _origin(fused, fused.instructions[root.operands[0]])
        if base.opcode == "parameter":
            update = root.operands[_WRITE_A_PART[root.opcode]]
            return fused.instructions[update].results[0].bytes
    return sum(shape.bytes for shape in root.results)


def _origin(fused: Computation, value: Instruction) -> Instruction:
    while value.opcode in _SAME_VALUES:
        value = fused.instructions[value.operands[0]]
    return value
