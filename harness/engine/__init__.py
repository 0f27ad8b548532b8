"""The simulated inference engine."""
