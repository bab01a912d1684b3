SPLIT: object
