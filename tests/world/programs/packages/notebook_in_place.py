"""A notebook whose cells run in this process, a cell of training twice."""

from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance(colors="nocolor")
cells = [
    "import torch\nfrom torch import nn\ngenerator = torch.manual_seed(0)",
    "model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))\n"
    "optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)",
    *[
        "for _ in range(20):\n    x = torch.randn(32, 8)\n"
        "    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))\n"
        "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n    print('loss', loss.item().hex())"
    ]
    * 2,
    "print('steps', 40)",
]
for cell in cells:
    shell.run_cell(cell, store_history=True).raise_error()
