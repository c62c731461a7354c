"""Tensor frameworks, each in its own folder, imported only when a model of that framework is watched."""
