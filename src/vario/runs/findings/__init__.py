"""What went wrong: stored alerts, rules over stored rows, the root cause, and recent changes."""
