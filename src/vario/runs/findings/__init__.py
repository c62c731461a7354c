"""What went wrong: stored alerts, rules over stored rows, the first cause, what changed lately."""
