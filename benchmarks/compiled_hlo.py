"""Reads the text of an optimised HLO module: computations of instructions."""

import dataclasses
import math
import re
from collections.abc import Iterator

_BITS = {"pred": 8, "token": 0}  # others say them: bf16, s32, f8e4m3fn


@dataclasses.dataclass(frozen=True)
class Shape:
    """The element type and the sizes of an array."""

    dtype: str
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """The bytes of all elements."""
        bits = _BITS.get(self.dtype)
        if bits is None:
            found = re.match(r"[a-z]+(\d+)", self.dtype)
            bits = int(found[1]) if found else 0
        return self.elements * bits // 8


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction; `results` are the arrays of its result, also of a tuple's."""

    name: str
    opcode: str
    results: tuple[Shape, ...]
    operands: tuple[str, ...]
    literal: str  # what stands in its parentheses
    attributes: str

    def called(self) -> list[str]:
        """Return the computations that it calls, in the order of the text."""
        named = re.findall(
            r"(?:calls|to_apply|body|condition|true_computation|false_computation)="
            r"%?([\w.\-]+)",
            self.attributes,
        )
        for listed in re.findall(r"branch_computations=\{([^}]*)\}", self.attributes):
            named += re.findall(r"[\w.\-]+", listed)
        return named

    @property
    def op_name(self) -> str:
        """The operation of the traced program that it comes from; "" if not told."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1] if found else ""

    def numbers(self, attribute: str) -> list[int]:
        """Return the numbers in `attribute={1,2}`, or `"attribute":["1","2"]`."""
        found = re.search(
            rf'\b{attribute}(?:"?:\[|=\{{)([^\]}}]*)[\]}}]', self.attributes
        )
        return [int(n) for n in re.findall(r"\d+", found[1])] if found else []


@dataclasses.dataclass(frozen=True)
class Computation:
    """A computation: its instructions by name, the last one in the text its root."""

    name: str
    instructions: dict[str, Instruction]
    root: str

    def parameter(self, number: int) -> Instruction:
        """Return the instruction of a parameter."""
        return next(
            instruction
            for instruction in self.instructions.values()
            if instruction.opcode == "parameter" and instruction.literal == str(number)
        )

    def users(self, name: str) -> list[Instruction]:
        """Return the instructions that have it among their operands."""
        return [i for i in self.instructions.values() if name in i.operands]


@dataclasses.dataclass(frozen=True)
class Module:
    """A module: its computations by name."""

    computations: dict[str, Computation]
    entry: str


def read(text: str) -> Module:
    """Return the module that an HLO text holds."""
    computations, entry = {}, ""
    name, instructions, root = "", {}, ""
    for line in text.splitlines():
        line = line.strip()
        if header := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$", line):
            name, instructions, root = header[2], {}, ""
            entry = name if header[1] else entry
        elif line == "}":
            computations[name] = Computation(name, instructions, root)
        elif found := re.match(r"(ROOT )?%?([\w.\-]+) = (.*)$", line):
            instructions[found[2]] = _instruction(found[2], found[3])
            root = found[2] if found[1] else root
    if entry not in computations:
        raise ValueError("the text holds no entry computation")
    return Module(computations, entry)


def _instruction(name: str, text: str) -> Instruction:
    """Read `type opcode(operands), attributes`."""
    end = _closing(text, 0) if text.startswith("(") else text.index(" ") - 1
    result, rest = text[: end + 1], text[end + 1 :].lstrip()
    opening = rest.index("(")
    closing = _closing(rest, opening)
    inside = rest[opening + 1 : closing]
    return Instruction(
        name,
        rest[:opening],
        tuple(_shapes(result)),
        tuple(re.findall(r"%([\w.\-]+)", inside)),
        inside,
        rest[closing + 1 :],
    )


def _shapes(text: str) -> Iterator[Shape]:
    for dtype, sizes in re.findall(r"(\w+)\[([\d,]*)\]", text):
        yield Shape(dtype, tuple(int(size) for size in sizes.split(",") if size))


def _closing(text: str, opening: int) -> int:
    """Return where the parenthesis at `opening` is closed."""
    depth = 0
    for place in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError(f"a parenthesis is not closed: {text}")
