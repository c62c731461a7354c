"""Numbers that are not finite, vanish, or leave their past."""
