"""The shape of the house: imports run downwards, what promises to be light is light, files stay readable."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "intaglio"
PYTHON_FOLDERS = ("src", "tests", "scripts", "benchmarks")
TEXT_FOLDERS = (*PYTHON_FOLDERS, "docs", "recipes", ".ci")

# From the ground up: a room may import from earlier rows, never from its neighbours in the same row.
FLOORS = (
    {"ground"},
    {"specs"},
    {"text"},
    {"data"},
    {"lineage", "planning", "native"},
    {"parts"},
    {"models"},
    {"checkpoints"},
    {"parallel", "adapters", "engine"},
    {"evaluation"},
    {"retrieval"},
    {"training", "serving"},
    {"advice"},
    {"atlas"},
    {"demo"},
    {"cli"},
)
GROUND = {"errors", "files", "fetch", "pages", "plots"}
WITHOUT_TORCH = {"specs", "lineage", "planning"}
COMPARED_WITH = {
    "transformers",
    "trl",
    "peft",
    "bitsandbytes",
}  # what tests hold us against; the core stands without them
LONGEST_FILE = 500  # lines


def text_of(file: Path) -> str:
    """What the file says."""
    return file.read_text(encoding="utf-8")


def module_name(file: Path, package: Path) -> str:
    """`intaglio.specs.norm` for `specs/norm.py`, `intaglio.specs` for `specs/__init__.py`."""
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(package: Path) -> dict[str, Path]:
    """Every module of the package, by its dotted name."""
    return {module_name(file, package): file for file in sorted(package.rglob("*.py"))}


def imports(name: str, file: Path, known: dict[str, Path]) -> Iterator[str]:
    """Every module that `file` imports, wherever in it: at its top, in a function, for the type checker.

    `from package import module` counts as importing the module, `from package import thing` the package.
    """
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(text_of(file), filename=str(file))):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                source = ".".join([*above, *([node.module] if node.module else [])])
                for alias in node.names:
                    inner = f"{source}.{alias.name}"
                    yield inner if inner in known else source
            case ast.Call(
                func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(target)), *_],
            ):
                yield target


def room(module: str) -> str:
    """The room a module of ours stands in; the package itself hands out anything: the top floor."""
    top = [*module.split("."), ""][1]
    if top in ("", "__main__"):
        return "cli"
    return "ground" if top in GROUND else top


def floor(name: str) -> int:
    """How high a room stands, the ground being 0."""
    for height, rooms in enumerate(FLOORS):
        if name in rooms:
            return height
    raise AssertionError(f"{name} is no room of the house: give it a row in FLOORS and in docs/layout.md")


def arrows(package: Path) -> Iterator[tuple[str, str]]:
    """Every import of one module of ours by another."""
    known = modules(package)
    for name, file in known.items():
        for target in imports(name, file, known):
            if target.split(".")[0] == package.name and target != name:
                yield name, target


def upward_arrows(package: Path) -> list[str]:
    """The imports that do not run downwards."""
    pairs = [(source, target) for source, target in arrows(package) if room(source) != room(target)]
    return [f"{source} -> {target}" for source, target in pairs if floor(room(target)) >= floor(room(source))]


def circle(package: Path) -> list[str]:
    """Modules that import each other in a circle, if any do; the package itself, being lazy, is left out."""
    graph: dict[str, set[str]] = {}
    for source, target in arrows(package):
        if package.name not in (source, target):
            graph.setdefault(source, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def importers(rooms: set[str], libraries: set[str]) -> list[str]:
    """The modules in `rooms` that import one of `libraries`, anywhere."""
    known = modules(PACKAGE)
    return [
        f"{name} -> {target}"
        for name, file in known.items()
        if room(name) in rooms
        for target in imports(name, file, known)
        if target.split(".")[0] in libraries
    ]


def rooms_built() -> set[str]:
    """The folders of the package that hold code."""
    return {folder.name for folder in PACKAGE.iterdir() if any(folder.glob("*.py"))}


def files(folders: tuple[str, ...], *suffixes: str) -> list[Path]:
    """The files under `folders` with one of `suffixes`, as a clone has them."""
    found = (file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in suffixes)
    return [file for file in found if "egg-info" not in str(file)]


def loaded_after(statements: str) -> set[str]:
    """The top-level modules that a fresh process has loaded after running `statements`."""
    code = f"{statements}\nimport sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    ended = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    return set(ended.stdout.split())


def test_imports_run_downwards() -> None:
    assert upward_arrows(PACKAGE) == []


def test_no_circles() -> None:
    assert circle(PACKAGE) == []


def test_the_core_stands_without_what_it_is_compared_with() -> None:
    every_room = set().union(*FLOORS)
    kernels = "intaglio.parts.nf4 -> bitsandbytes"  # where it is installed and the device is its own
    assert importers(every_room, COMPARED_WITH) == [kernels]


def test_rooms_without_torch_do_not_name_it() -> None:
    assert importers(WITHOUT_TORCH, {"torch"}) == []


def test_rooms_without_torch_do_not_load_it() -> None:
    light = [name for name in modules(PACKAGE) if room(name) in WITHOUT_TORCH]
    loaded = loaded_after(f"import {', '.join(light)}")
    assert "intaglio" in loaded
    assert not loaded & ({"torch"} | COMPARED_WITH)


def test_importing_the_package_is_light() -> None:
    assert not loaded_after("import intaglio") & {"torch", "numpy", "pydantic", "tokenizers", "rich"}


@pytest.mark.parametrize(
    ("source", "statement"),
    [
        ("specs/a.py", "from intaglio.parts import norm"),
        ("engine/a.py", "import intaglio.adapters.lora"),
        ("errors.py", "from .specs.a import A"),
        ("text/a.py", "def later():\n    from ..cli import main"),
        ("lineage/a.py", "import importlib\nimportlib.import_module('intaglio.models.decoder')"),
    ],
)
def test_an_upward_import_is_seen(tmp_path: Path, source: str, statement: str) -> None:
    file = tmp_path / "intaglio" / source
    file.parent.mkdir(parents=True)
    file.write_text(statement)
    assert len(upward_arrows(tmp_path / "intaglio")) == 1


def test_a_circle_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "intaglio" / "parts"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("from intaglio.parts import b")
    (folder / "b.py").write_text("from intaglio.parts.a import A")
    assert set(circle(tmp_path / "intaglio")) == {"intaglio.parts.a", "intaglio.parts.b"}


def test_no_file_is_too_long() -> None:
    lengths = {file: len(text_of(file).splitlines()) for file in files(PYTHON_FOLDERS, ".py")}
    assert {str(file.relative_to(ROOT)): n for file, n in lengths.items() if n > LONGEST_FILE} == {}


def test_the_layout_page_names_the_rooms_that_there_are() -> None:
    page = text_of(ROOT / "docs" / "layout.md")
    assert set(re.findall(r"^\| `src/intaglio/(\w+)/`", page, flags=re.MULTILINE)) == rooms_built()


def test_the_layout_page_names_the_rooms_within_rooms() -> None:
    page = text_of(ROOT / "docs" / "layout.md")
    inner = {
        f"{folder.relative_to(PACKAGE)}/"
        for folder in PACKAGE.glob("*/*/")
        if any(file.is_file() for file in folder.glob("*")) and folder.name != "__pycache__"
    }
    assert set(re.findall(r"^\| `(\w+/\w+/)` \|", page, flags=re.MULTILINE)) == inner


def test_pages_link_to_files_that_there_are() -> None:
    dead = [
        f"{page.relative_to(ROOT)} -> {link}"
        for page in [*ROOT.glob("*.md"), *files(("docs",), ".md")]
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text_of(page))
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert dead == []


def test_no_paths_of_a_machine() -> None:
    machine = re.compile(r"(?<![\w.~-])/(?:home|root|work|opt|Users)/\w")
    texts = files(TEXT_FOLDERS, ".py", ".md", ".yaml", ".toml", ".json", ".sh")
    top = [ROOT / "Makefile", ROOT / "constraints.txt", ROOT / "pyproject.toml", *ROOT.glob("*.md")]
    assert [str(file) for file in [*texts, *top] if machine.search(text_of(file))] == []
