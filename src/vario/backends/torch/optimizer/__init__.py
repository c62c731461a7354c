"""What updates do to parameters, and the settings of an optimizer."""
