"""Tensor frameworks, each in a folder of its own, imported only when a model of that framework is watched."""
