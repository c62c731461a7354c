"""The layers of docs/architecture.md, checked on every file of the package with ast."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "vario"
FILES = sorted(SOURCE.rglob("*.py"))

CORE = {"errors", "text", "records", "quantities", "registry", "schedule", "selector", "steps", "statistics", "config"}
CORE |= {"rules", "detection", "event_file", "notices", "package", "switch", "ending", "script", "run_files", "varint"}
CORE |= {"processes", "collecting", "docstrings"}
IN_PROCESS = {"backends", "probes", "frames", "observer", "sinks", "writer", "folders", "monitor", "control"}
IN_PROCESS |= {"forks", "frame_rows", "header", "plain_numbers", "plugins", "snapshots", "actions"}
IN_PROCESS |= {"idle", "succession", "leaving"}
PUBLIC = "the public names"

ALLOWED: dict[str, set[str]] = {
    **dict.fromkeys(CORE, CORE),
    # inside the training process
    "backends": CORE,
    "sinks": CORE,
    "frame_rows": CORE | {"backends"},
    "frames": CORE | {"backends", "frame_rows"},
    "observer": CORE | {"backends", "frames"},
    "writer": CORE | {"sinks"},
    "folders": CORE | {"sinks"},
    "probes": CORE | {"backends", "frames"},
    "control": CORE | {"backends", "probes", "frames", "sinks"},
    "header": CORE | {"backends", "sinks"},
    "plain_numbers": CORE | {"frames"},
    "plugins": CORE | {"probes", "sinks"},
    "snapshots": CORE | {"backends", "sinks"},
    "actions": CORE | {"backends", "observer", "sinks", "snapshots"},
    "monitor": CORE | IN_PROCESS,
    "idle": CORE | {"monitor"},
    "succession": CORE | {"monitor"},
    "start": CORE | {"monitor", "idle", "succession"},
    "leaving": CORE | {"children"},
    "launch": CORE | IN_PROCESS | {"after_import", "children"},
    "after_import": set(),
    "children": CORE | {"launch"},  # only in the text that a new process runs
    "forks": set(),
    "integrations": CORE | IN_PROCESS | {"analysis", PUBLIC},
    "compat": CORE | IN_PROCESS,
    # after the fact
    "runs": CORE,
    "logs": CORE | {"runs"},
    "reports": CORE | {"runs", "logs"},
    "web": CORE | {"runs", "reports"},
    "analysis": CORE | {"backends"},
    # on top: `run`, `demo`, `parts`, `watch`, `convert`, `import` reach into the other half, only inside their run()
    "demo": CORE | {PUBLIC},
    "cli": CORE | {"runs", "logs", "reports", "web", "analysis", "launch", "demo", "compat", "sinks", PUBLIC},
    "__main__": {"cli"},
    "progress": {"cli"},
    "__init__": CORE | {"monitor", "start", "runs", "analysis", "integrations"},
}
"""What each part of the package may import from the others; anything may import from its own folder."""

FRAMEWORKS = {"torch", "triton", "mindspore", "transformers", "lightning", "accelerate", "deepspeed"}
RUN_FILES = {
    "run.json",
    "rank.json",
    "structure.json",
    "collectives.json",
    "alerts.jsonl",
    "incidents.jsonl",
    "actions.jsonl",
}
BANNED = {"metric", "logger", "tracker", "manager", "processor", "util", "helper", "data", "info", "misc"}
FIXED_BY_OTHERS = {"print_model_info", "get_gpu_memory_info", "TrainingMetrics", "tracker", "get_preparation_data"}
FIXED_BY_OTHERS |= {"get_file_info", "get_file_info_selector", "data_received"}
"""Names that users know from elsewhere, or that accelerate, multiprocessing, Arrow and asyncio ask for."""


def place(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf8"))


def imports(node: ast.AST, module_level_only: bool = False) -> Iterator[str]:
    """Dotted names a file imports; `from vario import x` gives `vario.x`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "relative imports hide which layer is meant"
            module = child.module or ""
            if module == "vario" or (module.startswith("vario.") and is_package(module)):
                yield from (f"{module}.{alias.name}" for alias in child.names)
            else:
                yield module
        elif module_level_only and is_deferred(child):
            continue
        else:
            yield from imports(child, module_level_only)


def is_deferred(node: ast.AST) -> bool:
    """Whether what stands inside does not run when the file is imported."""
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def is_package(module: str) -> bool:
    return SOURCE.joinpath(*module.split(".")[1:]).is_dir()


def layer(imported: str) -> str | None:
    """Which layer an import reaches; None when it leaves vario."""
    parts = imported.split(".")
    if parts[0] != "vario":
        return None
    if len(parts) > 1 and ((SOURCE / parts[1]).is_dir() or (SOURCE / f"{parts[1]}.py").exists()):
        return parts[1]
    return PUBLIC


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_points_up(path):
    here = place(path)
    assert here in ALLOWED, f"{here} is new: give it a row in ALLOWED and a place in docs/architecture.md"
    for imported in imports(tree_of(path)):
        reached = layer(imported)
        if reached is not None and reached != here:
            assert reached in ALLOWED[here], f"{here} must not import {imported}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_frameworks_are_imported_at_module_level_only_at_home(path):
    parts = path.relative_to(SOURCE).parts
    at_home = parts[0] == "integrations" or (parts[0] == "backends" and len(parts) > 2)
    if not at_home:
        found = {name.split(".")[0] for name in imports(tree_of(path), module_level_only=True)} & FRAMEWORKS
        assert not found, f"{sorted(found)} imported at module level"


def test_no_import_cycle():
    graph: dict[str, set[str]] = {}
    modules = {}
    for path in FILES:
        parts = list(path.relative_to(SOURCE.parent).with_suffix("").parts)
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    for module, path in modules.items():
        graph[module] = set()
        for imported in imports(tree_of(path), module_level_only=True):
            while imported and imported not in modules:
                imported = imported.rpartition(".")[0]
            # A package's own __init__ is loaded before its files in any case.
            if imported and imported != module and not module.startswith(imported + "."):
                graph[module].add(imported)
    done: set[str] = set()

    def visit(module, trail):
        assert module not in trail, " -> ".join([*trail, module])
        if module not in done:
            for following in sorted(graph[module]):
                visit(following, [*trail, module])
            done.add(module)

    for module in graph:
        visit(module, [])


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_sinks_write_and_only_runs_parse_the_files_of_a_run(path):
    if place(path) in ("sinks", "runs"):
        return
    tree = tree_of(path)
    constants = {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert not constants & RUN_FILES
    assert not any(name.startswith("pyarrow.ipc") for name in imports(tree))


READS = {"read_text", "read_bytes", "read_metadata", "read_table", "read_schema", "memory_map", "OSFile", "ParquetFile"}
OTHER_FILES = {
    ("web/report.py", "read_text"),  # the page that was built with the package
    ("web/built_files.py", "read_text"),
    ("sinks/agreement.py", "read_text"),  # /proc
}


@pytest.mark.parametrize("path", [path for path in FILES if place(path) in ("runs", "sinks", "web")], ids=name_of)
def test_files_of_a_run_are_opened_in_one_place(path):
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        is_method = isinstance(node.func, ast.Attribute)
        if called in READS:
            # As functions of `run_files` they have these names too.
            assert not is_method or (name_of(path), called) in OTHER_FILES, f"line {node.lineno}: see vario.run_files"
        if called == "open" and not is_method:
            openers = [ast.unparse(word.value) for word in node.keywords if word.arg == "opener"]
            is_new = len(node.args) > 1 and getattr(node.args[1], "value", "") == "x"
            assert is_new or any("no_links" in opener for opener in openers), f"line {node.lineno}: see vario.run_files"


def test_the_two_halves_share_no_code():
    after = {"runs", "logs", "reports", "web"}
    for path in FILES:
        reached = {layer(name) for name in imports(tree_of(path))}
        if place(path) in after:
            assert not reached & (IN_PROCESS | {"launch"}), name_of(path)
        if place(path) in IN_PROCESS:
            assert not reached & after, name_of(path)


def defined_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def words(identifier: str) -> set[str]:
    lowered = {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", identifier)}
    return lowered | {word.removesuffix("s") for word in lowered}


# compat/ speaks the words of others where it has to.
@pytest.mark.parametrize("path", [path for path in FILES if place(path) != "compat"], ids=name_of)
def test_names_say_what_a_thing_is(path):
    identifiers = {*defined_names(tree_of(path)), *path.relative_to(SOURCE).with_suffix("").parts}
    for identifier in identifiers - FIXED_BY_OTHERS:
        assert not words(identifier) & BANNED, (
            f"'{identifier}' says nothing; see the vocabulary in docs/architecture.md"
        )


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_fits_in_a_head(path):
    assert len(path.read_text(encoding="utf8").splitlines()) <= 400
