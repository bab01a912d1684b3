KEEP: object
ENTER: object
FORGET: object
