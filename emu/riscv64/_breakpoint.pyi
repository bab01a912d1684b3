KEEP: int
ENTER: int
FORGET: int
