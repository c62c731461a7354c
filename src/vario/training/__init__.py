"""Inside the training process: the Monitor, the step it buffers, the thread that writes, and how runs begin and end."""
