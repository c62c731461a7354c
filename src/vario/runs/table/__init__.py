"""Many runs at once: a summary of each, columns made of it, filters, groups, and what mattered."""
