import sys
from pathlib import Path

# little_trainings.py serves the tests of several folders, so it lies above them.
sys.path.insert(0, str(Path(__file__).parents[1]))
