import sys
from pathlib import Path

# What writes runs serves the tests of other parts too, so it lies above.
sys.path.insert(0, str(Path(__file__).parents[1]))
