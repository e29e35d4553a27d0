"""How long an item may take to be read."""

# The longest that a real file took: a video of two hours without an index, from a network drive.
TIMEOUT_S = 30.0
