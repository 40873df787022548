"""Commands for the store and its settings: `redrive store`, `schema`, `config`, `keys`, `metrics`, `audit`, `init`."""
