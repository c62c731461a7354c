"""stable-baselines3: PPO on CartPole, many updates after each rollout."""

import gymnasium
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.utils import set_random_seed

set_random_seed(0)
torch.set_num_threads(1)
environment = gymnasium.make("CartPole-v1")
agent = PPO("MlpPolicy", environment, seed=0, device="cpu", n_steps=64, batch_size=32, n_epochs=4)
agent.learn(512)
for name, value in agent.policy.state_dict().items():
    print(name, value.double().sum().item().hex())
print("steps", agent._n_updates * 2)
environment.close()
