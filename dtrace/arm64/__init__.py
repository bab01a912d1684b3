"""DTrace on arm64."""
