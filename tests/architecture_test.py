"""Imports point down: who may import whom, and who may say which library."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = "attn_cnn_jax"

# Libraries that any module but models/, config and configs/ may use.
COMMON = {"jax", "flax", "jaxtyping", "numpy", "ml_collections", "optax", "tqdm"}

# Module: which of ours it may import. A package is itself in all its modules.
ALLOWED: dict[str, set[str]] = {
    "__init__": set(),
    "__main__": set(),
    "errors": set(),
    "config": {"data", "models", "optim", "errors"},
    "models": set(),
    "data": {"errors"},
    "optim": set(),
    "remote": {"errors"},
    "metrics": set(),
    "goodput": set(),
    "growing_file": set(),
    "tensorboard": {"growing_file"},
    "records": {"growing_file", "tensorboard"},
    "signals": set(),
    "environment": {"__init__"},
    "cluster": {"models", "errors"},
    "parallel": {"data", "models"},
    "checkpoint": {"config", "remote", "errors"},
    "evaluate": {"models", "data", "metrics", "parallel"},
    "covered_offsets": {"evaluate", "models", "data", "parallel", "errors"},
    "timetable": {"data", "optim", "errors"},
    "log": {
        "covered_offsets",
        "goodput",
        "timetable",
        "models",
        "metrics",
        "records",
        "signals",
        "parallel",
        "errors",
    },
    "train": {
        "evaluate",
        "covered_offsets",
        "goodput",
        "checkpoint",
        "log",
        "timetable",
        "models",
        "data",
        "optim",
        "metrics",
        "parallel",
        "signals",
        "environment",
        "config",
        "remote",
        "errors",
    },
    "run": {
        "evaluate",
        "checkpoint",
        "models",
        "data",
        "parallel",
        "remote",
        "errors",
    },
    "analysis": {
        "run",
        "covered_offsets",
        "checkpoint",
        "models",
        "data",
        "prepare_data",
        "config",
        "errors",
    },
    "results": {
        "run",
        "models",
        "data",
        "goodput",
        "records",
        "config",
        "command_line",
        "remote",
        "errors",
    },
    "variants": {"data", "models", "errors"},
    "compilation_cache": set(),
    "command_line": {
        "compilation_cache",
        "variants",
        "remote",
        "config",
        "errors",
        "models",
    },
    "analyze": {
        "analysis",
        "covered_offsets",
        "results",
        "run",
        "checkpoint",
        "parallel",
        "config",
        "command_line",
        "remote",
        "errors",
    },
    "prune": {"analysis", "remote", "command_line", "errors"},
    "main": {
        "train",
        "cluster",
        "run",
        "checkpoint",
        "parallel",
        "command_line",
        "config",
        "remote",
        "errors",
        "signals",
    },
    "bench": {
        "train",
        "timetable",
        "evaluate",
        "checkpoint",
        "models",
        "data",
        "parallel",
        "optim",
        "environment",
        "config",
        "command_line",
        "remote",
        "errors",
    },
    "sweep": {"checkpoint", "command_line", "config", "results", "errors"},
    "prepare_data": {"command_line", "data", "errors"},
    "theory": {
        "covered_offsets",
        "run",
        "parallel",
        "analysis",
        "checkpoint",
        "models",
        "data",
        "config",
        "command_line",
        "remote",
        "errors",
    },
    "interop": {
        "theory",
        "run",
        "checkpoint",
        "models",
        "parallel",
        "config",
        "command_line",
        "remote",
        "errors",
    },
}

# Libraries that only these modules may say.
ONLY = {
    "tensorflow_datasets": {"data", "prepare_data"},
    "orbax": {"checkpoint"},
    "absl": {
        "main",
        "analyze",
        "prune",
        "results",
        "sweep",
        "bench",
        "prepare_data",
        "interop",
        "theory",
        "command_line",
    },
    "scipy": {"results", "theory"},
    "sklearn": {"data"},
    "google": {"data"},  # protobuf's errors, out of TFDS
    "array_record": {"data"},
    "PIL": {"analysis", "data", "prepare_data"},
    "tensorboardX": {"tensorboard"},
    "safetensors": {"interop"},
    "torch": {"interop"},
    "fsspec": {"remote"},
    "matplotlib": {"analysis"},
}
LAZY = {
    "fsspec",
    "torch",
    "tensorflow_datasets",
    "sklearn",
    "tensorboardX",
    "safetensors",
}


def package_files() -> list[Path]:
    return sorted((ROOT / OURS).rglob("*.py"))


def name_of(path: Path) -> str:
    """The row of a file: the module, or the package that it lies in."""
    return path.relative_to(ROOT / OURS).with_suffix("").parts[0]


def imports(path: Path) -> list[tuple[str, bool]]:
    """(dotted name, whether inside a function) of all that a file imports.

    `from attn_cnn_jax import data` counts as attn_cnn_jax.data.
    """
    found = []

    def walk(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            for alias in node.names:
                found.append((f"{node.module}.{alias.name}", inside))
        functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        for child in ast.iter_child_nodes(node):
            walk(child, inside or isinstance(node, functions))

    walk(ast.parse(path.read_text(encoding="utf-8")), False)
    return found


def ours_in(path: Path) -> set[str]:
    parts = [name.split(".") for name, _ in imports(path)]
    mine = [p[1] for p in parts if p[0] == OURS and len(p) > 1]
    return {m if (ROOT / OURS / m).is_dir() or is_file(m) else "__init__" for m in mine}


def is_file(module: str) -> bool:
    return (ROOT / OURS / f"{module}.py").is_file()


def files_with_names() -> list:
    return [
        pytest.param(path, id=str(path.relative_to(ROOT))) for path in package_files()
    ]


def test_every_module_has_its_row():
    assert {name_of(path) for path in package_files()} == set(ALLOWED)


def test_the_walk_sees_imports():
    """Else everything below would hold of a walk that finds nothing."""
    train = dict(imports(ROOT / OURS / "train.py"))
    assert f"{OURS}.parallel" in train and f"{OURS}.errors.UserError" in train
    lazy = dict(imports(ROOT / OURS / "data" / "prepared.py"))
    assert lazy["tensorflow_datasets"] and not lazy["numpy"]


@pytest.mark.parametrize("path", files_with_names())
def test_imports_point_down(path):
    name = name_of(path)
    assert ours_in(path) - {name} <= ALLOWED[name]


def test_no_arrow_is_listed_that_does_not_exist():
    drawn: dict[str, set[str]] = {name: set() for name in ALLOWED}
    for path in package_files():
        drawn[name_of(path)] |= ours_in(path) - {name_of(path)}
    assert drawn == ALLOWED


def test_there_is_no_circle():
    left = {name: set(allowed) for name, allowed in ALLOWED.items()}
    while left:
        leaves = [name for name, below in left.items() if not below & left.keys()]
        assert leaves, f"a circle among {sorted(left)}"
        for name in leaves:
            del left[name]


@pytest.mark.parametrize("path", files_with_names())
def test_libraries_are_said_where_they_belong(path):
    name = name_of(path)
    for dotted, inside in imports(path):
        library = dotted.split(".")[0]
        assert library != "tensorflow"
        if library in (OURS, *sys.stdlib_module_names):
            continue
        if name == "models":
            assert library in {"jax", "flax", "jaxtyping"}, dotted
        elif name in ("config", "errors"):
            assert library == "ml_collections", dotted
        elif library in ONLY:
            assert name in ONLY[library], dotted
        else:
            assert library in COMMON, dotted
        if library in LAZY and name != "prepare_data":
            assert inside, f"{dotted} is imported before it is needed"


def test_numbers_need_no_matplotlib():
    """Nor does what they import: a node without it counts, ablates and prunes."""
    numbers = "attention_maps pictures heads learned_positions ablation pruning images"
    numbers += " closest_convolution"
    modules = ", ".join(f"{OURS}.analysis.{name}" for name in numbers.split())
    code = f"import sys, {modules}; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_only_the_plots_draw():
    plots = ROOT / OURS / "analysis" / "plots"
    for path in package_files():
        draws = any(dotted.startswith("matplotlib") for dotted, _ in imports(path))
        assert plots in path.parents or not draws, path
        assert "matplotlib.pyplot" not in [dotted for dotted, _ in imports(path)]


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, id=p.stem) for p in sorted((ROOT / "configs").glob("*.py"))],
)
def test_configs_import_the_schema_alone(path):
    for dotted, _ in imports(path):
        assert dotted == "ml_collections.ConfigDict" or dotted.startswith(
            f"{OURS}.config."
        )
    functions = [n for n in ast.parse(path.read_text()).body if hasattr(n, "name")]
    assert [function.name for function in functions] == ["get_config"]


def test_no_module_has_a_name_that_says_nothing():
    names = {part for path in package_files() for part in path.with_suffix("").parts}
    assert not names & {"utils", "util", "common", "helpers", "helper", "misc"}


# Module of benchmarks/: which of benchmarks/ and of ours it imports, and libraries.
BENCHMARKS = {
    "__init__": set(),
    "compiled": {
        "compiled_cost",
        "compiled_hlo",
        "jax",
        "ml_collections",
        "compiled_program",
        "compiled_summary",
        *(
            f"{OURS}.{name}"
            for name in "command_line config environment errors".split()
        ),
        "absl",
    },
    "compiled_cost": {"compiled_hlo"},
    "compiled_hlo": set(),
    "compiled_program": {
        *(f"{OURS}.{name}" for name in "data errors models optim parallel".split()),
        *(f"{OURS}.{name}" for name in "timetable train".split()),
        "jax",
        "ml_collections",
        "numpy",
    },
    "compiled_summary": {"compiled_cost"},
    "variants": set(),
    "worker": {"torch_step", "our_step"},
    "turns": {"variants"},
    "report": {"variants"},
    "scaling": {"report", "turns"},
    "compare": {
        "report",
        "scaling",
        "turns",
        "variants",
        "torch_step",
        f"{OURS}.command_line",
        f"{OURS}.config",
        f"{OURS}.data",
        f"{OURS}.errors",
        "absl",
        "ml_collections",
    },
    "our_step": {
        "variants",
        *(f"{OURS}.{name}" for name in "config data environment models".split()),
        *(f"{OURS}.{name}" for name in "optim parallel bench timetable train".split()),
        "jax",
        "numpy",
    },
    "torch_step": {"variants", "torch_models", "torch"},
    "torch_models": {"variants", "torch"},
}


def test_benchmarks_import_what_they_need():
    """PyTorch's side imports no JAX: its process would be measured with it."""
    drawn: dict[str, set[str]] = {}
    for path in (ROOT / "benchmarks").rglob("*.py"):
        name = path.relative_to(ROOT / "benchmarks").with_suffix("").parts[0]
        found = drawn.setdefault(name, set())
        for dotted, inside in imports(path):
            library, *rest = dotted.split(".")
            if library == "benchmarks":
                found |= {rest[0]} - {name}
            elif library == OURS:
                found.add(f"{OURS}.{rest[0]}")
            elif library not in sys.stdlib_module_names:
                found.add(library)
            if name in ("worker", "compare") and "_step" in dotted:
                assert inside, f"{dotted} is imported before it is needed"
    assert drawn == BENCHMARKS


def test_nothing_imports_the_benchmarks():
    for path in [*package_files(), *(ROOT / "configs").glob("*.py")]:
        assert not any(name.startswith("benchmarks") for name, _ in imports(path)), path


@pytest.mark.parametrize("folder", [OURS, "benchmarks", "configs", "tests"])
def test_every_module_says_what_it_is(folder):
    for path in (ROOT / folder).rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path
