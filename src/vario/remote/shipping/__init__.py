"""Copies runs to where they should lie: what is finished once, what grows by its end, as often as it takes."""
