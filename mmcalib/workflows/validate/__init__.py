"""Whether a configuration that somebody wrote does what it says, and survives what it admits."""
