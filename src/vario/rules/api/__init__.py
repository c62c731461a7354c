"""What rules are built on: their view of a step, their memory of each series, alerts and incidents.

Pure numpy logic, the same in a training process and when replaying a stored run.
"""
