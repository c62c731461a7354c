"""stable-baselines3: DQN on CartPole, with replay and a target network."""

import gymnasium
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.utils import set_random_seed

set_random_seed(0)
torch.set_num_threads(1)
environment = gymnasium.make("CartPole-v1")
agent = DQN(
    "MlpPolicy",
    environment,
    seed=0,
    device="cpu",
    learning_starts=50,
    batch_size=16,
    train_freq=2,
    target_update_interval=20,
)
agent.learn(200)
for name, value in agent.policy.state_dict().items():
    print(name, value.double().sum().item().hex())
print("steps", agent._n_updates)
environment.close()
