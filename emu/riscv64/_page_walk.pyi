WALK: object
