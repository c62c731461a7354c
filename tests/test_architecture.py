"""The layers of docs/architecture.md, checked on every file of the package with ast."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from vario.backends.frameworks import FRAMEWORKS as FRAMEWORK_PARTS
from vario.core import run_format
from vario.rules import RULES

SOURCE = Path(__file__).parents[1] / "src" / "vario"
FILES = sorted(SOURCE.rglob("*.py"))

CORE = {"core", "statistics", "rules", "notices", "config"}
IN_PROCESS = {
    "backends",
    "machine",
    "probes",
    "store",
    "sinks",
    "frame_rows",
    "row_bins",
    "step_buffer",
    "observer",
    "writer",
    "folders",
}
IN_PROCESS |= {"forks", "header", "not_offered", "plugins", "snapshots", "actions", "idle", "succession", "leaving"}
IN_PROCESS |= {
    "attachments",
    "monitor",
    "budget",
    "costs",
    "tripwire",
    "gradient_watch",
    "found_params",
    "attaching",
    "failures",
}
"""The modules of `training/` stand for themselves: it has layers of its own."""
PUBLIC = "the public names"

ALLOWED: dict[str, set[str]] = {
    **dict.fromkeys(CORE, CORE),
    # inside the training process
    "backends": CORE,
    "store": CORE,
    "machine": CORE,
    "remote": CORE,  # on both sides
    "sinks": CORE | {"machine", "remote", "store"},
    "frame_rows": CORE | {"backends"},
    "row_bins": CORE | {"backends"},
    "step_buffer": CORE | {"backends", "frame_rows", "row_bins"},
    "costs": CORE,
    "observer": CORE | {"backends", "costs", "step_buffer"},
    "gradient_watch": CORE,
    "tripwire": CORE | {"backends", "costs", "gradient_watch", "observer"},
    "budget": CORE | {"backends", "costs", "observer", "sinks", "step_buffer", "store", "tripwire"},
    "writer": CORE | {"sinks"},
    "folders": CORE | {"backends", "sinks", "store"},
    "probes": CORE | {"backends", "step_buffer"},
    "header": CORE | {"backends"},
    "found_params": CORE,
    "not_offered": CORE | {"backends"},
    "attaching": CORE | {"backends", "not_offered", "probes"},
    "failures": CORE | {"backends", "observer", "sinks"},
    "plugins": CORE | {"backends", "probes", "sinks"},
    "snapshots": CORE | {"backends", "store"},
    "actions": CORE | {"backends", "observer", "sinks", "snapshots", "store"},
    "attachments": CORE | {"backends", "store", "writer"},
    "monitor": CORE | IN_PROCESS,
    "run_log": CORE | {"attachments", "backends", "monitor"},
    "idle": CORE | {"monitor", "run_log"},
    "succession": CORE | {"monitor"},
    "start": CORE | {"monitor", "idle", "run_log", "succession"},
    "leaving": CORE | {"children"},
    "launch": CORE | IN_PROCESS | {"after_import", "children"},
    "after_import": set(),
    "children": CORE | {"launch"},  # only in the text that a new process runs
    "forks": set(),
    "integrations": CORE | IN_PROCESS | {"analysis", PUBLIC},
    "compat": CORE | IN_PROCESS,
    # after the fact
    "runs": CORE | {"remote"},
    "logs": CORE | {"runs"},
    "reports": CORE | {"remote", "runs", "logs"},
    "web": CORE | {"runs", "reports"},
    "analysis": CORE | {"backends"},
    # on top: `run`, `demo`, `parts`, `watch`, `convert`, `import` reach into the other half, only inside their run()
    "demo": CORE | {PUBLIC},
    "demo_mindspore": CORE | {PUBLIC, "demo"},
    "cli": CORE
    | {
        "runs",
        "logs",
        "reports",
        "web",
        "analysis",
        "launch",
        "demo",
        "demo_mindspore",
        "compat",
        "remote",
        "store",
        PUBLIC,
    },
    "__main__": {"cli"},
    "progress": {"cli"},
    "__init__": CORE | {"monitor", "start", "runs", "analysis", "integrations"},
}
"""What each part of the package may import from the others; anything may import from its own folder."""

FRAMEWORKS = {"torch", "triton", "mindspore", "transformers", "lightning", "accelerate", "deepspeed"}
RUN_FILES = {name for name in vars(run_format).values() if isinstance(name, str) and ".json" in name}
BANNED = {"metric", "logger", "tracker", "manager", "processor", "util", "helper", "data", "info", "misc"}
FIXED_BY_OTHERS = {"print_model_info", "get_gpu_memory_info", "TrainingMetrics", "tracker", "get_preparation_data"}
FIXED_BY_OTHERS |= {"get_file_info", "get_file_info_selector", "data_received"}
"""Names that users know from elsewhere, or that accelerate, multiprocessing, Arrow and asyncio ask for."""


def place(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[1] if parts[0] == "training" else parts[0]


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf8"))


def none(offences: Iterable[str]) -> None:
    """Fails with every offence, not with the first alone."""
    found = sorted(set(offences))
    assert not found, "\n" + "\n".join(found)


def imports(node: ast.AST, inside_functions: bool = True, for_types: bool = True) -> Iterator[str]:
    """Dotted names a file imports, in functions and for type checkers too unless told otherwise."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "relative imports hide which layer is meant"
            module = child.module or ""
            is_ours = module == "vario" or (module.startswith("vario.") and is_package(module))
            # `from vario import x` gives `vario.x`.
            yield from (f"{module}.{alias.name}" for alias in child.names) if is_ours else [module]
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from imports(child, inside_functions, for_types) if inside_functions else []
        elif for_types or not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield from imports(child, inside_functions, for_types)


@cache
def is_package(module: str) -> bool:
    return SOURCE.joinpath(*module.split(".")[1:]).is_dir()


@cache
def layer(imported: str) -> str | None:
    """Which layer an import reaches; None when it leaves vario."""
    parts = imported.split(".")
    if parts[0] != "vario":
        return None
    if parts[1:2] == ["training"]:
        return parts[2]
    if len(parts) > 1 and ((SOURCE / parts[1]).is_dir() or (SOURCE / f"{parts[1]}.py").exists()):
        return parts[1]
    return PUBLIC


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


def own_imports(path: Path, inside_functions: bool = True) -> set[str]:
    """Modules of vario that a file imports at some time while it runs."""
    found = set()
    for imported in imports(tree_of(path), inside_functions, for_types=False):
        while imported and imported not in MODULES:
            imported = imported.rpartition(".")[0]
        found |= {imported} - {"", module_of(path)}
    return found


def test_nothing_points_up():
    assert not {place(path) for path in FILES} - ALLOWED.keys(), "new: a row in ALLOWED and in docs/architecture.md"
    none(
        f"{name_of(path)} must not import {imported}"
        for path in FILES
        for imported in imports(tree_of(path))
        if layer(imported) not in {None, place(path), *ALLOWED[place(path)]}
    )


ROOMS: dict[str, dict[str, set[str]]] = {
    "runs": {
        "files": set(),
        "reader": {"files"},
        "views": {"files", "reader"},
        "findings": {"files", "reader", "views", "notes"},
        "compare": {"files", "reader", "views", "findings"},
        "live": {"files", "reader", "views", "findings"},
        "notes": {"files"},
        "table": {"files", "reader", "views", "findings", "notes"},
        "notebook_html": {"files", "reader", "views", "findings"},
        "run": {"files", "reader", "views", "findings", "notebook_html"},
    },
    "remote": {
        "sizes": set(),
        "places": set(),
        "mirror": {"places", "sizes"},
        "shipping": {"places", "sizes"},
    },
    "web": {
        "bodies": {"served"},
        "api": {"bodies"},
        "server": {"api"},
        "served": set(),
        "reading": set(),
        "answer_cache": {"api", "served"},
        "addresses": {"api", "bodies", "reading", "served", "server"},
        "live": {"addresses", "api", "bodies", "reading", "served", "server"},
        "pages": {"addresses", "api", "bodies", "served"},
        "mcp": {"addresses", "api", "bodies", "reading", "served", "server"},
        "writing": {"addresses", "api", "bodies", "live", "served", "server"},
        "app": {"addresses", "answer_cache", "api", "live", "mcp", "pages", "reading", "served", "server", "writing"},
    },
}
"""What each room of these folders may import from the others."""


def test_no_room_points_up():
    none(
        f"{name_of(path)} must not import {imported}"
        for path in FILES
        if (rooms := ROOMS.get(folder := place(path))) and module_of(path) != f"vario.{folder}"
        for imported in own_imports(path)
        if imported.startswith(f"vario.{folder}.")
        if imported.split(".")[2] not in {room := module_of(path).split(".")[2], *rooms[room]}
    )


def test_frameworks_are_imported_at_module_level_only_at_home():
    def is_at_home(parts: tuple[str, ...]) -> bool:
        return parts[0] == "integrations" or (parts[0] == "backends" and len(parts) > 2)

    none(
        f"{name_of(path)} imports {name} at module level"
        for path in FILES
        if not is_at_home(path.relative_to(SOURCE).parts)
        for name in imports(tree_of(path), inside_functions=False, for_types=False)
        if name.split(".")[0] in FRAMEWORKS
    )


def test_the_in_process_half_knows_no_framework():
    """Probes, the Monitor and `vario run` reach a framework through `backends/protocols` and `backends/frameworks`."""
    packages = tuple(f"vario.backends.{found.name}" for found in FRAMEWORK_PARTS)
    none(
        f"{name_of(path)} imports {imported}"
        for path in FILES
        if place(path) in (IN_PROCESS | {"launch", "start"}) - {"backends"}
        for imported in imports(tree_of(path))
        if f"{imported}.".startswith(tuple(f"{package}." for package in packages))
    )


def test_no_import_cycle():
    """Imports inside functions are counted; those for type checkers alone are not."""
    graph = {module: own_imports(path) for module, path in MODULES.items()}
    done: set[str] = set()
    cycles = []

    def visit(module, trail):
        if module in trail:
            cycles.append(" -> ".join([*trail[trail.index(module) :], module]))
        elif module not in done:
            for following in sorted(graph[module]):
                visit(following, [*trail, module])
            done.add(module)

    for module in graph:
        visit(module, [])
    none(cycles)


LATER = {
    "analysis": "backends.torch",  # torch may be missing
    # none is imported before it is used
    "backends.frameworks": "backends.no_model backends.numpy backends.torch backends.mindspore",
    "backends.torch.reduce.summaries": "backends.torch.reduce.cuda",  # Triton may be missing
    "backends.torch.reduce.distributions": "backends.torch.reduce.cuda_bins",
    "integrations.recording": "backends.torch integrations.predictions",
    "remote.places.opening": "remote.places",  # each wants a package that may be missing
    "training.launch": "training.monitor",  # not before the script has imported its framework
    "training.start": "config training.monitor training.run_log training.succession",  # switched off, it costs nothing
    "cli": "",  # `vario --help` is there at once: a command imports what it needs when it runs
    "logs.own_runs": "runs",  # logs of other tools are read without pyarrow
    "runs.files.row_files": "core.run_files.dataset",  # pyarrow.dataset takes its time; only SQL needs it
    "runs.run": "runs.notebook_html",  # only a notebook needs it
    "web.mcp.address": "web.mcp.protocol",  # its package may be missing
}
"""Imports of our own inside functions: who imports what, and why not at the top of the file."""


def is_later(module: str, imported: str) -> bool:
    def is_below(name: str, folder: str) -> bool:
        return not folder or f"{name}.".startswith(f"vario.{folder}.")

    return any(
        is_below(module, who) and any(is_below(imported, what) for what in whom.split() or [""])
        for who, whom in LATER.items()
    )


def test_own_imports_stand_at_the_top_of_a_file():
    none(
        f"{module} imports {imported} inside a function"
        for module, path in MODULES.items()
        for imported in own_imports(path) - own_imports(path, inside_functions=False)
        if not is_later(module, imported)
    )


def test_only_store_and_sinks_write_and_only_runs_parse_the_files_of_a_run():
    assert len(RUN_FILES) == 11
    none(
        f"{name_of(path)}:{node.lineno} names {node.value}: see vario.core.run_format"
        for path in FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and node.value in RUN_FILES and name_of(path) != "core/run_format.py"
    )
    none(
        f"{name_of(path)} imports {name}"
        for path in FILES
        if place(path) not in ("sinks", "store", "runs", "remote", "core")
        for name in imports(tree_of(path))
        if name.startswith(("pyarrow.ipc", "vario.core.run_format"))
    )


READS = {"read_text", "read_bytes", "read_metadata", "read_table", "read_schema", "memory_map", "OSFile", "ParquetFile"}
OTHER_FILES = {
    ("web/pages/report.py", "read_text"),  # the page that was built with the package
    ("web/pages/built_files.py", "read_text"),
    ("store/rank_agreement.py", "read_text"),  # /proc
}


def opens_a_file(path: Path, node: ast.Call) -> bool:
    """Whether a call opens a file on its own, and not as `vario.core.run_files` does."""
    is_method = isinstance(node.func, ast.Attribute)
    called = node.func.attr if is_method else getattr(node.func, "id", "")
    if called in READS:
        return is_method and (name_of(path), called) not in OTHER_FILES  # functions of `run_files` have these names too
    if called != "open" or is_method:
        return False
    openers = [ast.unparse(word.value) for word in node.keywords if word.arg == "opener"]
    is_new = len(node.args) > 1 and getattr(node.args[1], "value", "") == "x"
    return not is_new and not any("no_links" in opener for opener in openers)


def test_files_of_a_run_are_opened_in_one_place():
    none(
        f"{name_of(path)}:{node.lineno}: see vario.core.run_files"
        for path in FILES
        if place(path) in ("runs", "sinks", "store", "web")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and opens_a_file(path, node)
    )


def test_the_two_halves_share_no_code():
    after = {"runs", "logs", "reports", "web"}
    other_half = {**dict.fromkeys(after, IN_PROCESS | {"launch"}), **dict.fromkeys(IN_PROCESS, after)}
    none(
        f"{name_of(path)} imports {imported}"
        for path in FILES
        for imported in imports(tree_of(path))
        if layer(imported) in other_half.get(place(path), ())
    )


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


def identifiers(path: Path) -> set[str]:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    is_on_training_data = parts[:2] == ("rules", "data")
    return {*defined_names(tree_of(path)), *(parts[2:] if is_on_training_data else parts)} - FIXED_BY_OTHERS


def test_names_say_what_a_thing_is():
    none(
        f"{name_of(path)}: '{identifier}' says nothing; see the vocabulary in docs/architecture.md"
        for path in FILES
        if place(path) != "compat"  # it speaks the words of others where it has to
        for identifier in identifiers(path)
        if words(identifier) & BANNED
    )


def test_what_is_said_of_a_rule_stands_in_its_own_file():
    """No table of causes, stages or charts by the names of rules: each has its own beside it."""
    names = {found.name for found in RULES}
    none(
        f"{name_of(path)}:{node.lineno} is a table of rules; see `causes`, `stage` and `chart` of vario.rules.rule"
        for path in FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Dict)
        if len(names & {key.value for key in node.keys if isinstance(key, ast.Constant)}) > 1
    )
    keys = re.compile(rf"^\s*[\"']?({'|'.join(names)})[\"']?:", re.MULTILINE)
    pages = (SOURCE.parents[1] / "frontend" / "src").rglob("*.ts*")
    none(f"{path.name} has a table of rules" for path in pages if len(set(keys.findall(path.read_text()))) > 1)


PAGE = SOURCE.parents[1] / "docs" / "architecture.md"
ONE_FILE_A_PART = ("rules/", "statistics/", "logs/", "reports/", "compat/", "cli/commands/", "web/bodies/")
ONE_FILE_A_PART += tuple(f"backends/torch/{folder}/" for folder in ("engines", "trainers", "memory_simulation"))
"""Folders whose files the page does not name one by one."""


def test_the_page_names_every_module_and_nothing_else():
    page = PAGE.read_text(encoding="utf8")
    named = set(re.findall(r"\w+", page.split("src/vario/\n")[1].split("```")[0]))
    none(
        f"docs/architecture.md: the tree does not name {name_of(path)}"
        for path in FILES
        if path.stem not in named and path.name != "__init__.py" and not name_of(path).startswith(ONE_FILE_A_PART)
    )
    places = {found for found in re.findall(r"`([\w/.]+/[\w.]*)`", page) if "*" not in found}
    assert len(places) > 30
    none(
        f"docs/architecture.md: there is no {found}"
        for found in places
        if not any(
            (above / found).exists() for above in (SOURCE, SOURCE.parents[1], SOURCE.parents[1] / "frontend" / "src")
        )
    )


def test_a_file_fits_in_a_head():
    none(name_of(path) for path in FILES if len(path.read_text(encoding="utf8").splitlines()) > 400)


def test_a_folder_reads_at_a_glance():
    modules = Counter(path.parent for path in FILES)
    none(f"{folder.relative_to(SOURCE)} has {count} modules" for folder, count in modules.items() if count > 30)
