"""Recipes of healthy loops, a file for each family."""
