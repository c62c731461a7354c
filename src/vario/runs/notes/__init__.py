"""What people say about runs: name, tags, note, star, archive. Kept beside the runs, never in them."""
