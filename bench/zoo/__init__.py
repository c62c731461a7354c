"""The fault zoo: tiny real trainings, healthy and broken on purpose, to try rules on. See README.md."""
