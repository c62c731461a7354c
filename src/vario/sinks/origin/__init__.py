"""What a run was started from: its code, its environment, its packages, and what its script prints."""
