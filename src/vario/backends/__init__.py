"""Tensor frameworks. Each lives in a folder of its own and is imported only when a model of that framework is watched."""
