"""Models that are made here, from nothing, by scripts that anyone can run again."""
