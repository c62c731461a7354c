"""List the parts vario found, by kind (quantities, rules, sinks, statistics, frameworks), and where each comes from."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from vario.cli import arguments as shared
from vario.cli import output
from vario.core.errors import ConfigError
from vario.core.text import unknown

if TYPE_CHECKING:
    from vario.core.registry import Registry

EXAMPLES = """
vario parts
vario parts --kind statistics
vario parts --json
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add --kind and --json."""
    parser.add_argument("--kind", metavar="KIND", help="only this kind, for example statistics")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the parts."""

    rows = found_parts()
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    if arguments.kind is not None:
        if arguments.kind not in kinds:
            raise ConfigError(unknown("--kind", arguments.kind, kinds))
        rows = [row for row in rows if row["kind"] == arguments.kind]
    if arguments.json:
        output.print_json(rows)
        return 0
    from rich.table import Table

    table = Table("kind", "name", "description", "origin", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["kind"], row["name"], row["doc"], row["origin"])
    output.stdout().print(table)
    return 0


def found_parts() -> list[dict[str, str]]:
    """Yield each part's kind, name, first line of documentation and origin; for a plug-in that failed, the error."""
    import vario

    rows: list[dict[str, str]] = []
    packages = [module.name for module in pkgutil.iter_modules(vario.__path__, "vario.") if module.ispkg]
    for package in [*packages, "vario.backends.frameworks"]:
        for registry in registries(package):
            for found in registry:
                said = (getattr(found.part, name, None) for name in ("doc", "summary", "__doc__"))
                doc = next((text for text in said if isinstance(text, str) and text), "")
                first_line = doc.strip().splitlines()[0] if doc.strip() else ""
                rows.append({"kind": registry.kind, "name": found.name, "doc": first_line, "origin": found.origin})
            for broken in registry.broken:
                row = {"kind": registry.kind, "name": broken.name, "doc": f"not loaded: {broken.error}"}
                rows.append({**row, "origin": broken.origin, "error": broken.error})
    return rows


def registries(package: str) -> list[Registry[Any]]:
    """Return the registries of a package."""
    from vario.core.registry import Registry

    module = importlib.import_module(package)
    return [value for value in vars(module).values() if isinstance(value, Registry) and value.package == package]
