import sys
from pathlib import Path

# models.py serves the tests of everything that looks at a model, so it lies above them.
sys.path.insert(0, str(Path(__file__).parents[1]))
