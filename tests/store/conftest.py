import sys
from pathlib import Path

# made_runs.py serves the tests of both halves, so it lies above them.
sys.path.insert(0, str(Path(__file__).parents[1]))
