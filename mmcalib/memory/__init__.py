"""Memory of a configuration: rehearsed, cross-checked, and what follows from it."""
