KEEP: object
ENTER: object
FORGET: object
PLACES: tuple[str, ...]
FOOTPRINT: int
