"""One small module per subcommand of `knee`."""
