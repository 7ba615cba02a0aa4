"""The rules that keep the tree in one direction, read off the imports themselves.

Python would let every module import every other.  These tests parse the sources instead of running
them, so an import inside a function or under TYPE_CHECKING counts as well.
"""

from __future__ import annotations

import ast
import graphlib
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import optpart

ROOT = Path(__file__).resolve().parent.parent

# Lowest first: a module imports from lower lines, or without a cycle from its own.  A package's name
# stands for all modules in it that have no line of their own.
ORDER = (
    ("units",),
    ("graph",),
    ("problem",),
    ("random_graphs",),
    ("plans",),
    ("liveness",),
    ("timelines",),
    ("order",),
    ("fusion",),
    ("validate",),
    ("summary",),
    ("explain",),
    ("torch_private",),
    ("capture", "capture_sides", "signatures"),
    ("cost",),
    ("solver",),  # takes a network or a matrix, knows no formulation
    ("formulation",),
    ("peers",),
    ("handover",),
    ("rewrite",),
    ("hold",),
    ("settings",),
    ("bare_search",),
    ("fixed_order",),
    ("free_order",),
    ("peak_search",),
    ("strategy",),
    ("journal",),
    ("sweep",),
    ("partitioner", "hooks"),
    ("measuring",),
    ("gradients",),
    ("pytorch_plans", "pytorch_cut"),
    ("report",),
    ("report_json",),
    ("planning",),
    ("frontiers",),
    ("frontier_report",),
    ("figures",),
    ("frontier_figure",),
    ("streams",),
    ("exits",),
    ("progress",),
    ("solve_command",),
    ("profile_command",),
    ("cli",),
)

NO_TORCH = (
    *("units", "graph", "problem", "random_graphs", "plans", "liveness", "timelines", "order", "fusion", "validate"),
    *("summary", "explain", "streams"),
    *("solver", "formulation", "peers", "bare_search", "fixed_order", "free_order", "peak_search", "strategy"),
    *("exits", "solve_command", "journal", "sweep"),
)
# Imported without torch, and import it inside a function.
TORCH_WHEN_CALLED = (
    *("cost", "settings", "report", "report_json", "frontier_report", "figures", "frontier_figure"),
    *("progress", "profile_command", "cli"),
)

# FakeTensorMode has no public name yet; the zoo stands alone, so it does not go through torch_private.
ALLOWED_PRIVATE = {("models/registry.py", "torch._subclasses.fake_tensor")}


def sources(folder: str) -> dict[str, Path]:
    """Dotted module name -> file, for every Python file below a folder of the checkout."""
    files = sorted((ROOT / folder).rglob("*.py"))
    return {".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f for f in files}


MODULES = sources("optpart")
INNER = [name for name, file in MODULES.items() if file.name != "__init__.py"]


def imports(tree: ast.AST) -> Iterator[str]:
    """The dotted names that a source imports; ``from a import b`` gives "a.b", a relative import starts with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" for alias in node.names)


def parse(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text())


def own_imports(name: str) -> set[str]:
    """The modules of this package that one of them imports ("optpart" itself for a public name)."""
    found = {i for i in imports(parse(name)) if i.split(".")[0] in ("", "optpart")}
    assert not any(i.startswith(".") for i in found), f"{name} has a relative import; this package writes names out"
    return {i if i in MODULES else i.rpartition(".")[0] or i for i in found}


def within(name: str, *parts: str) -> bool:
    """Whether a module is one of these, or in a package that is."""
    return any(f"{name}.".startswith(f"optpart.{part}.") for part in parts)


def rank(name: str) -> int:
    """The line of ORDER that a module stands on: the most specific one that names it."""
    lines = [(len(part), i) for i, line in enumerate(ORDER) for part in line if within(name, part)]
    assert lines, f"{name} has no place in ORDER"
    return max(lines)[1]


def test_imports_go_one_way() -> None:
    wrong = [f"{a} imports {b}" for a in INNER for b in sorted(own_imports(a)) if b == "optpart" or rank(b) > rank(a)]
    assert not wrong
    graphlib.TopologicalSorter({name: own_imports(name) for name in INNER}).prepare()  # raises CycleError


def test_packages_import_nothing_by_themselves() -> None:
    """A package runs whenever a module in it is imported, so it would carry the order's exceptions."""
    packages = set(MODULES) - set(INNER) - {"optpart"}
    assert [name for name in sorted(packages) if own_imports(name)] == []


def test_the_checker_shares_no_code_with_what_it_checks() -> None:
    reached, waiting = set(), ["optpart.validate"]
    while waiting:
        name = waiting.pop()
        reached.add(name)
        waiting += own_imports(name) - reached
    assert not [name for name in reached if within(name, "liveness", "formulation", "solver", "capture", "rewrite")]


# ----------------------------------------------------------------------------------------------- torch


def private_torch(source: str) -> set[str]:
    """The private names of torch in a source: imported, written out, or as a string that is nothing but one."""
    tree = ast.parse(source)
    names = set(imports(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names.add(ast.unparse(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    private = re.compile(r"(?:torch|functorch)(?:\.\w+)*?\._(?!_)\w+(?:\.\w+)*")
    return {n for n in names if private.fullmatch(n) and not n.startswith("torch.ops.")}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch._dynamo", {"torch._dynamo"}),
        ("def f():\n    from torch import _C", {"torch._C"}),
        ("from torch.fx._lazy_graph_module import A", {"torch.fx._lazy_graph_module.A"}),
        ("x = torch._inductor.config", {"torch._inductor", "torch._inductor.config"}),
        ("find_spec('torch._functorch.config')", {"torch._functorch.config"}),
        ("import torch.fx; torch.__version__; torch.ops.aten._softmax; x._make(); 'see torch._dynamo'", set()),
    ],
)
def test_private_names_are_seen(source: str, found: set[str]) -> None:
    assert private_torch(source) == found


def test_private_torch_in_one_file() -> None:
    wrong = []
    for file in (f for folder in ("optpart", "models", "experiments") for f in sources(folder).values()):
        path = file.relative_to(ROOT).as_posix()
        for name in sorted(private_torch(file.read_text())):
            allowed = any(path == p and name.startswith(module) for p, module in ALLOWED_PRIVATE)
            if path != "optpart/torch_private.py" and not allowed:
                wrong.append(f"{path}: {name}")
    assert not wrong


def test_torch_free_modules_name_no_torch() -> None:
    free = [name for name in INNER if within(name, *NO_TORCH)]
    assert not [name for name in free if any(i.split(".")[0] in ("torch", "functorch") for i in imports(parse(name)))]


def test_import_loads_no_torch() -> None:
    """In a fresh interpreter, and through everything that the modules import in their turn."""
    names = ["optpart", *(name for name in INNER if within(name, *NO_TORCH, *TORCH_WHEN_CALLED)), "models"]
    program = "import importlib, sys\n" + "".join(
        f"importlib.import_module({name!r})\nassert 'torch' not in sys.modules, {name!r}\n" for name in names
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


# -------------------------------------------------------------------------------------------- the names


def test_public_names() -> None:
    """Each is there, was written down for type checkers too, and is no module's name."""
    typed = {i.rpartition(".")[2] for i in imports(parse("optpart")) if i.startswith("optpart.")}
    assert set(optpart.__all__) == typed
    assert set(optpart.__all__) <= set(dir(optpart))
    for name in optpart.__all__:
        home = importlib.import_module(getattr(optpart, name).__module__)
        assert getattr(home, name) is getattr(optpart, name)
    assert not set(optpart.__all__) & {part for name in MODULES for part in name.split(".")}
    with pytest.raises(AttributeError, match="no attribute 'partitoin'"):
        optpart.partitoin  # noqa: B018


# ----------------------------------------------------------------------------------------- the checkout


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_wheel_has_every_package() -> None:
    data = project()
    folders = {name for name, file in MODULES.items() if file.name == "__init__.py"}
    assert set(data["tool"]["setuptools"]["packages"]) == folders | {"optpart_models"}


def test_every_dependency_is_pinned() -> None:
    data = project()["project"]
    wanted = [*data["dependencies"], *(r for extra in data["optional-dependencies"].values() for r in extra)]
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert {re.match(r"[\w-]+", requirement)[0].lower() for requirement in wanted} <= pinned


def test_no_path_of_a_machine() -> None:
    path = re.compile(r"(?<![\w.:/-])/(?:home|root|tmp|Users|work)/\w|\b[A-Z]:\\\\?Users\b")
    files = [f for f in ROOT.iterdir() if f.suffix in (".md", ".toml", ".txt")]
    for folder in ("optpart", "models", "tests", "experiments", "paper", ".ci"):
        caches = re.compile(r"(?:^|/)(?:\.|__pycache__)")
        inside = (f for f in (ROOT / folder).rglob("*") if not caches.search(f.relative_to(ROOT / folder).as_posix()))
        files += [f for f in inside if f.is_file()]
    wrong = []
    for file in sorted(files):
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
            if path.search(line):
                wrong.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not wrong
