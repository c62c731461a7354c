import sys
from pathlib import Path

from vario.backends.torch.releases import load_compilers

# models.py serves the tests of everything that looks at a model, so it lies above them.
sys.path.insert(0, str(Path(__file__).parents[1]))

# The models of transformers import torch.compile's machinery, which torch 2.6 cannot do under `torch.device("meta")`.
load_compilers()
