"""The dashboard's server: answers over HTTP what `runs` reads. It only reads; nothing here writes into a run."""
