"""DTrace on amd64."""
