"""A plain model of a store, and random calls that hold a store to it. See `redrive.testing.StoreModel`."""
