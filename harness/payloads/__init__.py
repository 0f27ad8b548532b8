"""Request bodies, made before load starts."""
