"""diffusers: the unconditional training example, with accelerate and an average of the weights that is swapped in."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

set_seed(0)
model = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    layers_per_block=1,
    block_out_channels=(16, 32),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    norm_num_groups=4,
)
average = EMAModel(model.parameters(), decay=0.95)
noises = DDPMScheduler(num_train_timesteps=50)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
schedule = get_cosine_schedule_with_warmup(optimizer, 5, 30)
loader = DataLoader(TensorDataset(torch.rand(80, 1, 8, 8) * 2 - 1), batch_size=8, shuffle=True)
accelerator = Accelerator(cpu=True)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for _ in range(3):
    for (clean,) in loader:
        noise, t = torch.randn_like(clean), torch.randint(0, 50, (len(clean),))
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(noises.add_noise(clean, noise, t), t, return_dict=False)[0], noise)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        average.step(model.parameters())
        print("loss", loss.item().hex())
    average.store(model.parameters())
    average.copy_to(model.parameters())
    with torch.no_grad():
        print("sample", model(torch.randn(1, 1, 8, 8), 10).sample.sum().item().hex())
    average.restore(model.parameters())
print("steps", 30)
