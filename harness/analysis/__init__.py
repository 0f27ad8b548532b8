"""Statistics and verdicts: arrays in, frozen results out."""
