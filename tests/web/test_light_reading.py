"""What a server must not load to answer: pandas alone takes longer than many an answer."""

import importlib.util
import subprocess
import sys

ASKING = """
import sys
from pathlib import Path
from starlette.datastructures import QueryParams
from vario.web.app import all_endpoints
from vario.web.api.parameters import read_query
from vario.web.served import Served

served = Served(Path(sys.argv[1]))
told = {"series": "gradient|head.weight|norm", "target": "head.weight", "quantity": "gradient"}
told |= {"number": "loss", "result": "loss", "name": "kept"}
told |= dict.fromkeys(("run", "a", "b"), sys.argv[2])
asked = [endpoint for endpoint in all_endpoints() if not endpoint.is_stream]
for endpoint in asked:
    if endpoint.path == "/api/distribution" and sys.argv[2] == "ranks":
        continue  # this run has none
    names = {parameter.name for parameter in endpoint.parameters}
    values = read_query(endpoint.parameters, QueryParams({name: told[name] for name in names & told.keys()}))
    with served.reading():
        endpoint.answer(served, values)
    assert "pandas" not in sys.modules, f"{endpoint.path} imports pandas"
print(len(asked))
"""


def test_no_answer_needs_pandas(folder):
    assert importlib.util.find_spec("pandas"), "without pandas here this test would tell nothing"
    for run in ("ranks", "deeper/broken"):
        command = [sys.executable, "-c", ASKING, str(folder), run]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) > 8
