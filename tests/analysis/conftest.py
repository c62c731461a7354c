import sys
from pathlib import Path

from vario.backends.torch.releases import load_compilers

# models.py serves the tests of everything that looks at a model, so it lies above them.
sys.path.insert(0, str(Path(__file__).parents[1]))

# The models of transformers import torch.compile, which torch 2.6 and 2.8 cannot do under `torch.device("meta")`.
load_compilers()
