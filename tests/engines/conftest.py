import sys
from pathlib import Path

# releases.py serves many tests; tiny_trainer.py lies with the tests of the trainers themselves.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "integrations"))
