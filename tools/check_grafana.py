"""Check docs/grafana/vario.json against the types that Grafana publishes, with the TypeScript compiler: `make grafana`.

Each part is written as a literal of its type, so that an unknown field, a missing one and a wrong word are errors. It
needs npm and a package index, and is no Grafana: whether the panels look right, only that can say.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("@grafana/schema@13.2.3", "typescript@5.9.3")
RAW = "./node_modules/@grafana/schema/dist/types/raw"
PANELS = f"{RAW}/composable"
IMPORTS = f"""
import type {{ Dashboard, Panel }} from '{RAW}/dashboard/x/types.gen';
import type {{ Options as bargauge }} from '{PANELS}/bargauge/panelcfg/x/types.gen';
import type {{ Options as stat }} from '{PANELS}/stat/panelcfg/x/types.gen';
import type {{ Options as timeseries, FieldConfig }} from '{PANELS}/timeseries/panelcfg/x/types.gen';
// An enumeration's words as they stand in JSON.
type InJson<T> = T extends string ? `${{T}}` : T extends number ? T : T extends (infer One)[] ? InJson<One>[]
  : T extends object ? {{ [K in keyof T]: InJson<T[K]> }} : T;
"""
OPTIONS = ("--noEmit", "--strict", "--skipLibCheck", "--moduleResolution", "bundler", "--module", "esnext")


def literals(dashboard: dict[str, object]) -> str:
    """Return the dashboard and its parts as TypeScript."""
    lines = [IMPORTS, f"export const dashboard: InJson<Dashboard> = {json.dumps(dashboard)};"]
    panels = dashboard["panels"]
    assert isinstance(panels, list)
    for panel in panels:
        name, kind = f"panel{panel['id']}", panel["type"]
        lines.append(f"export const {name}: InJson<Panel> = {json.dumps(panel)};")
        lines.append(f"export const {name}Options: InJson<{kind}> = {json.dumps(panel['options'])};")
        custom = panel["fieldConfig"]["defaults"].get("custom")
        if custom is not None:
            lines.append(f"export const {name}Field: InJson<FieldConfig> = {json.dumps(custom)};")
    return "\n".join(lines)


def main(folder: Path) -> int:
    """Install the types into a folder, and compile."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text('{"private": true}')
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", *PACKAGES], cwd=folder, check=True)
    dashboard = json.loads((ROOT / "docs" / "grafana" / "vario.json").read_text(encoding="utf8"))
    (folder / "dashboard.ts").write_text(literals(dashboard))
    return subprocess.run(["npx", "tsc", *OPTIONS, "--target", "es2022", "dashboard.ts"], cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
