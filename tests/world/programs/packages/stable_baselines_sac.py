"""stable-baselines3: SAC on Pendulum: an actor, two critics and a temperature, each with its optimizer."""

import gymnasium
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.utils import set_random_seed

set_random_seed(0)
torch.set_num_threads(1)
environment = gymnasium.make("Pendulum-v1")
agent = SAC(
    "MlpPolicy",
    environment,
    seed=0,
    device="cpu",
    learning_starts=40,
    batch_size=16,
    policy_kwargs={"net_arch": [32, 32]},
)
agent.learn(100)
for name, value in agent.policy.state_dict().items():
    print(name, value.double().sum().item().hex())
print("steps", agent._n_updates)
environment.close()
