class Amd64:
    name="amd64"; elf_machine="X86_64"
