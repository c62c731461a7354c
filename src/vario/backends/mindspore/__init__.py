"""MindSpore: cells and their training loops."""
