class Arm64:
    name="arm64"; elf_machine="AARCH64"
