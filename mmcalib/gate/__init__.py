"""Pure: does an item or a prompt fit the measured limits, and what would make it fit."""
