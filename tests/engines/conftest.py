import sys
from pathlib import Path

# tiny_trainer.py lies with the tests of the trainers themselves.
sys.path.insert(0, str(Path(__file__).parents[1] / "integrations"))
