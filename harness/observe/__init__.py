"""GPU, engine and clock observation."""
