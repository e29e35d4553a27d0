"""What is installed, what will work, and what to type where something will not."""
