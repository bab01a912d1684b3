"""One session instead of a command each time: in a terminal, and in notebooks."""
