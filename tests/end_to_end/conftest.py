import sys
from pathlib import Path

# models.py and watching.py serve the tests of the whole in-process half, so they lie above them.
sys.path.insert(0, str(Path(__file__).parents[1]))
