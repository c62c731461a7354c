"""A notebook, turned into a script by nbconvert and run."""

import nbformat
from nbconvert import PythonExporter

cells = [
    "import torch\nfrom torch import nn\ntorch.manual_seed(0)",
    "model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))\n"
    "optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)",
    "for _ in range(30):\n    x = torch.randn(32, 8)\n"
    "    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))\n"
    "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n    print('loss', loss.item().hex())",
    "print('steps', 30)",
]
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
script, _ = PythonExporter().from_notebook_node(notebook)
exec(compile(script, "notebook.py", "exec"))
