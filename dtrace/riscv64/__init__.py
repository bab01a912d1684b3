"""DTrace on riscv64."""
