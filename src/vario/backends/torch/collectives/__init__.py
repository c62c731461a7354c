"""Collective operations, whoever calls them."""
