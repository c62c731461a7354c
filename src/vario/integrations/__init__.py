"""Trainers of other packages: each module turns one trainer's events into calls of a Monitor."""
