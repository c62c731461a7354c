"""Rules about values that are not finite, vanish, or deviate from their past."""
