"""What runs in the training process: the Monitor, the step buffer, the writer thread, and how runs start and end."""
