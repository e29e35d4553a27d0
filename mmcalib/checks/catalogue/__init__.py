"""What goes wrong with configurations that people write by hand: one finding for each trap."""
