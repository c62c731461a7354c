"""Integrations with other packages' trainers: each module turns one trainer's events into calls of a Monitor."""
