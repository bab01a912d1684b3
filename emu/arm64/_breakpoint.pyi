KEEP: object
ENTER: object
FORGET: object
FOOTPRINT: int
