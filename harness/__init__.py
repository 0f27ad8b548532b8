"""Load-testing harness for inference services that take text and images."""
