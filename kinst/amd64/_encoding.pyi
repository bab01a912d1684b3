SPLIT: int
