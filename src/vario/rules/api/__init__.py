"""What rules stand on: a step as they see it, what they remember of each series, their alerts, and incidents.

Pure logic over numpy, the same inside a training process and over a stored run.
"""
